<?php
// php-amqplib, used as Laravel's queue (vyuldashev/laravel-queue-rabbitmq) uses it: a queue for each
// delay with TTL and expiry, declared before each publish, whose messages expire into the queue of
// work; a job that fails is published again with a delay and one attempt more. No package registry
// that is at hand has the package itself. Used by test_delays.py. Arguments: port, virtual host.
declare(strict_types=1);

require 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

const QUEUE = 'laravel.work';
const COUNT = 40;
// The broker counts in whole milliseconds of its clock.
const GRAIN_MS = 1.0;
const PATIENCE_S = 40;

function now_ms(): float { return hrtime(true) / 1e6; }

function check(bool $holds, string $what): void
{
    if (!$holds) {
        fwrite(STDOUT, "failed: $what\n");
        exit(1);
    }
}

function later(AMQPChannel $channel, int $delay_s, string $payload, int $attempts): void
{
    $message = new AMQPMessage($payload, ['delivery_mode' => AMQPMessage::DELIVERY_MODE_PERSISTENT]);
    $message->set('application_headers', new AMQPTable(['laravel' => ['attempts' => $attempts]]));
    $destination = QUEUE;
    if ($delay_s > 0) {
        $ttl = $delay_s * 1000;
        $destination = QUEUE.".delay.$ttl";
        $channel->queue_declare($destination, false, true, false, false, false, new AMQPTable([
            'x-dead-letter-exchange' => '',
            'x-dead-letter-routing-key' => QUEUE,
            'x-message-ttl' => $ttl,
            'x-expires' => $ttl * 2,
        ]));
    }
    $channel->basic_publish($message, '', $destination, true);
    $channel->wait_for_pending_acks_returns(PATIENCE_S);
}

[, $port, $vhost] = $argv;
$connection = new AMQPStreamConnection('127.0.0.1', $port, 'guest', 'guest', urldecode($vhost));
$channel = $connection->channel();
$channel->confirm_select();
$channel->set_nack_handler(fn () => check(false, 'a publish is refused'));
$channel->set_return_listener(fn () => check(false, 'a publish finds no queue'));
$channel->queue_declare(QUEUE, false, true, false, false);

$due = [];
$tries = [];
$tries_of = fn (int $number): int => 1 + $number % 3;
for ($number = 0; $number < COUNT; ++$number) {
    $delay_s = $number % 3;
    $due[$number] = now_ms() + $delay_s * 1000;
    later($channel, $delay_s, (string) $number, 0);
}
$left = array_sum(array_map($tries_of, range(0, COUNT - 1)));
$deadline = now_ms() + PATIENCE_S * 1000;
for ($idle = 0; $idle < 50; ) {
    check(now_ms() < $deadline, "$left tries have not come");
    $message = $channel->basic_get(QUEUE);
    if (null === $message) {
        usleep(10_000);
        $idle = 0 === $left ? $idle + 1 : 0;
        continue;
    }
    $number = (int) $message->body;
    $attempts = $message->get('application_headers')->getNativeData()['laravel']['attempts'];
    $early = $due[$number] - now_ms();
    check($early <= GRAIN_MS, "job $number is $early ms early");
    check(($tries[$number] ?? 0) === $attempts, "job $number came twice");
    $tries[$number] = $attempts + 1;
    --$left;
    if ($attempts + 1 < $tries_of($number)) {
        $due[$number] = now_ms() + 1000;
        later($channel, 1, $message->body, $attempts + 1);
    }
    $channel->basic_ack($message->getDeliveryTag());
}
check(0 === $left, "$left tries too many");
$connection->close();
echo "done\n";
