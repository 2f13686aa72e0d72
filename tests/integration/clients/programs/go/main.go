// amqp091-go against a broker: everything, recover, blocked, idle. Used by test_go.py and nothing else.
//
//	goclient SCENARIO PORT
//
// Says "ready" when the test may do its part, and ends with status 0 when all held.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const patience = 40 * time.Second

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(holds bool, what string, found ...any) {
	if !holds {
		panic(fmt.Sprint(append([]any{what, " "}, found...)...))
	}
}

func say(word string) { fmt.Println(word) }

func next[T any](from <-chan T, what string) T {
	select {
	case item, open := <-from:
		check(open, what, "closed")
		return item
	case <-time.After(patience):
		panic("not within time: " + what)
	}
}

func publish(ch *amqp.Channel, key string, mandatory bool, body []byte) bool {
	message := amqp.Publishing{Body: body, DeliveryMode: amqp.Persistent, MessageId: "m"}
	confirmation, err := ch.PublishWithDeferredConfirm("", key, mandatory, false, message)
	must(err)
	ctx, done := context.WithTimeout(context.Background(), patience)
	defer done()
	isAcked, err := confirmation.WaitContext(ctx)
	must(err)
	return isAcked
}

func work(ch *amqp.Channel) {
	_, err := ch.QueueDeclare("go.dead", true, false, false, false, nil)
	must(err)
	_, err = ch.QueueDeclare("go.work", true, false, false, false, amqp.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "",
		"x-dead-letter-routing-key": "go.dead",
	})
	must(err)
	must(ch.Confirm(false))
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	check(publish(ch, "go.work", false, big), "big confirmed")
	for i := 1; i < 20; i++ {
		check(publish(ch, "go.work", false, []byte(fmt.Sprint(i))), "confirmed")
	}
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	check(publish(ch, "go.nowhere", true, []byte("x")), "unroutable confirmed")
	returned := next(returns, "return")
	check(returned.ReplyCode == 312 && returned.ReplyText == "NO_ROUTE", "return", returned.ReplyText)

	must(ch.Qos(5, 0, false))
	deliveries, err := ch.Consume("go.work", "worker", false, false, false, false, nil)
	must(err)
	held := []amqp.Delivery{}
	for range 5 {
		held = append(held, next(deliveries, "delivery"))
	}
	check(bytes.Equal(held[0].Body, big), "big body")
	select {
	case <-deliveries:
		panic("a sixth delivery within a prefetch of 5")
	case <-time.After(300 * time.Millisecond):
	}
	must(held[0].Nack(false, true))
	must(held[1].Reject(false))
	must(held[4].Ack(true))
	redelivered := 0
	for seen := 3; seen < 19; seen++ {
		delivery := next(deliveries, "delivery")
		if delivery.Redelivered {
			redelivered++
			check(bytes.Equal(delivery.Body, big), "redelivered body")
		}
		must(delivery.Ack(false))
	}
	check(redelivered == 1, "redelivered", redelivered)
	must(ch.Cancel("worker", false))
}

func letter(ch *amqp.Channel) {
	deadline := time.Now().Add(patience)
	for {
		message, found, err := ch.Get("go.dead", true)
		must(err)
		if found {
			death := message.Headers["x-death"].([]interface{})[0].(amqp.Table)
			check(death["reason"] == "rejected" && death["queue"] == "go.work", "x-death", death)
			return
		}
		check(time.Now().Before(deadline), "dead letter")
	}
}

func everything(conn *amqp.Connection) {
	ch, err := conn.Channel()
	must(err)
	work(ch)
	letter(ch)

	cancelled := ch.NotifyCancel(make(chan string, 1))
	_, err = ch.QueueDeclare("go.gone", true, false, false, false, nil)
	must(err)
	_, err = ch.Consume("go.gone", "left", true, false, false, false, nil)
	must(err)
	other, err := conn.Channel()
	must(err)
	_, err = other.QueueDelete("go.gone", false, false, false)
	must(err)
	check(next(cancelled, "cancel") == "left", "cancelled tag")

	_, err = other.QueueDeclarePassive("go.missing", true, false, false, false, nil)
	broken, isAmqp := err.(*amqp.Error)
	check(isAmqp && broken.Code == 404, "channel error", err)
	check(publish(ch, "go.dead", false, []byte("still here")), "the other channel goes on")
	must(conn.Close())
}

func recoverAll(url string) {
	conn, err := amqp.DialConfig(url, amqp.Config{Recovery: &amqp.Recovery{}})
	must(err)
	ch, err := conn.Channel()
	must(err)
	_, err = ch.QueueDeclare("go.recover", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	must(err)
	deliveries, err := ch.Consume("go.recover", "", true, false, false, false, nil)
	must(err)
	must(ch.Publish("", "go.recover", false, false, amqp.Publishing{Body: []byte("before")}))
	next(deliveries, "before the restart")
	say("ready")
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		_ = ch.Publish("", "go.recover", false, false, amqp.Publishing{Body: []byte("after")})
		select {
		case delivery, open := <-deliveries:
			if open && string(delivery.Body) == "after" && isRestarted() {
				return
			}
		case <-time.After(200 * time.Millisecond):
		}
	}
	panic("not recovered")
}

// The test writes a line when the server has been killed and started again.
var restarted = make(chan bool, 1)

func isRestarted() bool {
	select {
	case <-restarted:
		restarted <- true
		return true
	default:
		return false
	}
}

func listen() {
	line := make([]byte, 1)
	_, _ = os.Stdin.Read(line)
	restarted <- true
}

func blocked(conn *amqp.Connection) {
	blockings := conn.NotifyBlocked(make(chan amqp.Blocking, 4))
	ch, err := conn.Channel()
	must(err)
	_, err = ch.QueueDeclare("go.blocked", false, false, true, false, nil)
	must(err)
	say("ready")
	next(restarted, "the test's word")
	must(ch.Publish("", "go.blocked", false, false, amqp.Publishing{Body: []byte("x")}))
	first := next(blockings, "blocked")
	check(first.Active && first.Reason != "", "blocked", first)
	say("blocked")
	check(!next(blockings, "unblocked").Active, "unblocked")
	must(conn.Close())
}

// interval is the client's default but for connections that stand idle.
func interval() time.Duration {
	if os.Args[1] == "idle" {
		return 2 * time.Second
	}
	return 10 * time.Second
}

// idle carries nothing for several intervals of the heartbeat.
func idle(conn *amqp.Connection) {
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	select {
	case err := <-closed:
		panic(err)
	case <-time.After(8 * time.Second):
	}
	_, err := conn.Channel()
	must(err)
}

func main() {
	url := "amqp://guest:guest@127.0.0.1:" + os.Args[2] + "/"
	go listen()
	if os.Args[1] == "recover" {
		recoverAll(url)
	} else {
		conn, err := amqp.DialConfig(url, amqp.Config{Locale: "en_US", Heartbeat: interval()})
		must(err)
		map[string]func(*amqp.Connection){
			"everything": everything, "blocked": blocked, "idle": idle,
		}[os.Args[1]](conn)
	}
	say("done")
}
