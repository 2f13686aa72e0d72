<?php
// Symfony Messenger over its AMQP transport (php-amqp): messages with a DelayStamp, and a worker whose
// handler fails some of them, so that they come again with growing delays. Each is handled once for
// each try and none before its time. Used by test_delays.py. Arguments: port, virtual host.
declare(strict_types=1);

require 'Symfony/Component/Messenger/autoload.php';
require 'Symfony/Component/Messenger/Bridge/Amqp/autoload.php';
require 'Symfony/Component/EventDispatcher/autoload.php';

use Symfony\Component\EventDispatcher\EventDispatcher;
use Symfony\Component\Messenger\Bridge\Amqp\Transport\AmqpTransport;
use Symfony\Component\Messenger\Bridge\Amqp\Transport\Connection;
use Symfony\Component\Messenger\Envelope;
use Symfony\Component\Messenger\Event\WorkerMessageFailedEvent;
use Symfony\Component\Messenger\Event\WorkerRunningEvent;
use Symfony\Component\Messenger\EventListener\SendFailedMessageForRetryListener;
use Symfony\Component\Messenger\Handler\HandlersLocator;
use Symfony\Component\Messenger\MessageBus;
use Symfony\Component\Messenger\Middleware\HandleMessageMiddleware;
use Symfony\Component\Messenger\Retry\MultiplierRetryStrategy;
use Symfony\Component\Messenger\Stamp\DelayStamp;
use Symfony\Component\Messenger\Worker;

const COUNT = 60;
const FIRST_RETRY_MS = 200;
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

final class Task
{
    public function __construct(public int $number) {}
}

// A locator of one service, as containers are.
final class One implements Psr\Container\ContainerInterface
{
    public function __construct(private object $service) {}
    public function get(string $id): object { return $this->service; }
    public function has(string $id): bool { return 'async' === $id; }
}

[, $port, $vhost] = $argv;
$dsn = "amqp://guest:guest@127.0.0.1:$port/$vhost/symfony";
$options = ['confirm_timeout' => 10, 'queues' => ['symfony.work' => []]];
$transport = new AmqpTransport(Connection::fromDsn($dsn, $options));

$due = [];      // number to the time before which its next try must not come
$tries = [];    // number to how often it was handled
$tries_of = fn (int $number): int => 1 + $number % 3;
$handle = function (Task $task) use (&$due, &$tries, $tries_of): void {
    $number = $task->number;
    $early = $due[$number] - now_ms();
    check($early <= GRAIN_MS, "task $number is $early ms early");
    $tries[$number] = ($tries[$number] ?? 0) + 1;
    check($tries[$number] <= $tries_of($number), "task $number is doubled");
    if ($tries[$number] < $tries_of($number)) {
        $due[$number] = now_ms() + FIRST_RETRY_MS * 2 ** ($tries[$number] - 1);
        throw new RuntimeException('not yet');
    }
};

$bus = new MessageBus([new HandleMessageMiddleware(new HandlersLocator([Task::class => [$handle]]))]);
$events = new EventDispatcher();
$retries = new MultiplierRetryStrategy(5, FIRST_RETRY_MS, 2);
$events->addSubscriber(new SendFailedMessageForRetryListener(new One($transport), new One($retries)));
$events->addListener(WorkerMessageFailedEvent::class, function (WorkerMessageFailedEvent $failed): void {
    check($failed->willRetry(), 'a task is given up: '.$failed->getThrowable()->getMessage());
}, -1000);
$deadline = now_ms() + PATIENCE_S * 1000;
$idle = 0;
$events->addListener(WorkerRunningEvent::class, function (WorkerRunningEvent $running) use (&$tries, &$idle, $tries_of, $deadline): void {
    $left = array_sum(array_map($tries_of, range(0, COUNT - 1))) - array_sum($tries);
    check(now_ms() < $deadline, "$left tries have not come");
    // What came twice would come now: the worker finds nothing for a while after the last.
    $idle = 0 === $left && $running->isWorkerIdle() ? $idle + 1 : 0;
    if ($idle > 50) {
        $running->getWorker()->stop();
    }
});

for ($number = 0; $number < COUNT; ++$number) {
    $delay = [0, 150, 400, 900][$number % 4];
    $due[$number] = now_ms() + $delay;
    $transport->send(new Envelope(new Task($number), $delay ? [new DelayStamp($delay)] : []));
}
(new Worker(['async' => $transport], $bus, $events))->run(['sleep' => 10_000]);
echo "done\n";
