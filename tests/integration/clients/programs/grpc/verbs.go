// All verbs of the Messages service by grpc-go: go run . ADDRESS
package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "example.com/orders/brokerdv1"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return value
}

func equal[T comparable](what string, found, expected T) {
	if found != expected {
		log.Panicf("%s: %v, expected %v", what, found, expected)
	}
}

// The bodies of deliveries, one after the other.
func bodies(deliveries []*pb.Delivered) (found string) {
	for _, each := range deliveries {
		found += string(each.Body) + " "
	}
	return
}

func refused[T any](what string, code codes.Code) func(T, error) {
	return func(_ T, err error) { equal(what, status.Code(err), code) }
}

type consuming = grpc.BidiStreamingClient[pb.ConsumeRequest, pb.ConsumeResponse]

func subscribe(call consuming, subscribe *pb.Subscribe) *pb.Subscribed {
	call.Send(&pb.ConsumeRequest{Kind: &pb.ConsumeRequest_Subscribe{Subscribe: subscribe}})
	return must(call.Recv()).Subscribed
}

func main() {
	connection := must(grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials())))
	messages := pb.NewMessagesClient(connection)
	login := "Basic " + base64.StdEncoding.EncodeToString([]byte("guest:guest"))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	refused[*pb.GetResponse]("without a login", codes.Unauthenticated)(messages.Get(ctx, &pb.GetRequest{Queue: "verbs"}))
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", login)

	must(messages.DeclareExchange(ctx, &pb.DeclareExchangeRequest{Name: "verbs", Type: "direct", Durable: true}))
	quorum := map[string]*pb.Value{"x-queue-type": {Kind: &pb.Value_Text{Text: "quorum"}}}
	queue := &pb.QueueDeclaration{Name: "verbs", Durable: true, Arguments: quorum}
	declared := must(messages.DeclareQueue(ctx, &pb.DeclareQueueRequest{Queue: queue}))
	equal("declared", fmt.Sprint(declared.Name, declared.Messages), fmt.Sprint("verbs", 0))
	other := &pb.QueueDeclaration{Name: "verbs", Arguments: quorum}
	refused[*pb.DeclareQueueResponse]("another declaration", codes.InvalidArgument)(messages.DeclareQueue(ctx, &pb.DeclareQueueRequest{Queue: other}))
	absent := &pb.QueueDeclaration{Name: "nowhere", Passive: true}
	refused[*pb.DeclareQueueResponse]("passive", codes.NotFound)(messages.DeclareQueue(ctx, &pb.DeclareQueueRequest{Queue: absent}))
	binding := &pb.Binding{Source: "verbs", Destination: "verbs", RoutingKey: "k"}
	must(messages.Bind(ctx, &pb.BindRequest{Binding: binding}))

	request := &pb.PublishRequest{}
	for n := uint64(1); n <= 5; n++ {
		request.Publications = append(request.Publications,
			&pb.Publication{Sequence: n, Exchange: "verbs", RoutingKey: "k", Body: fmt.Appendf(nil, "m%d", n)})
	}
	published := must(messages.PublishBatch(ctx, request))
	equal("ranges", fmt.Sprint(len(published.Confirmed), published.Confirmed[0].First, published.Confirmed[0].Last, len(published.Rejected)), "1 1 5 0")
	nowhere := &pb.PublishRequest{Publications: []*pb.Publication{{Sequence: 1, Exchange: "nowhere"}}}
	refused[*pb.PublishResponse]("no such exchange", codes.NotFound)(messages.PublishBatch(ctx, nowhere))

	got := must(messages.Get(ctx, &pb.GetRequest{Queue: "verbs", Count: 2}))
	equal("got", bodies(got.Deliveries)+fmt.Sprint(got.MessagesLeft), "m1 m2 3")
	refused[*pb.GetResponse]("no such queue", codes.NotFound)(messages.Get(ctx, &pb.GetRequest{Queue: "nowhere"}))

	call := must(messages.Consume(ctx))
	equal("subscribed", subscribe(call, &pb.Subscribe{Queue: "verbs", Credit: 10}).Queue, "verbs")
	call.Send(&pb.ConsumeRequest{Kind: &pb.ConsumeRequest_Drain{Drain: &pb.Drain{}}})
	settlement, received := &pb.Settlement{}, ""
	answer := must(call.Recv())
	for ; answer.Drained == nil; answer = must(call.Recv()) {
		received += bodies(answer.Deliveries)
		for _, each := range answer.Deliveries {
			settlement.DeliveryTags = append(settlement.DeliveryTags, each.DeliveryTag)
		}
	}
	equal("drained", received+fmt.Sprint(answer.Drained.Credit), "m3 m4 m5 7")
	call.Send(&pb.ConsumeRequest{Kind: &pb.ConsumeRequest_Settle{Settle: settlement}})
	call.Send(&pb.ConsumeRequest{Kind: &pb.ConsumeRequest_Credit{Credit: 4}})
	call.Send(&pb.ConsumeRequest{Kind: &pb.ConsumeRequest_Withdraw{Withdraw: &pb.Withdraw{}}})
	equal("withdrawn", must(call.Recv()).Withdrawn.GetCredit(), 4)
	call.Send(&pb.ConsumeRequest{Kind: &pb.ConsumeRequest_Cancel{Cancel: &pb.Cancel{}}})
	equal("cancelled", must(call.Recv()).CancelOk != nil, true)
	call.CloseSend()
	_, err := call.Recv()
	equal("the end", err, io.EOF)

	// A queue that is the call's own, and a message that comes by its binding.
	own := must(messages.Consume(ctx))
	subscribed := subscribe(own, &pb.Subscribe{
		Declare:         &pb.QueueDeclaration{Exclusive: true},
		Bindings:        []*pb.Binding{{Source: "verbs", RoutingKey: "own"}},
		AutoAcknowledge: true,
		Credit:          1,
	})
	refused[*pb.GetResponse]("another's queue", codes.FailedPrecondition)(messages.Get(ctx, &pb.GetRequest{Queue: subscribed.Queue}))
	mine := &pb.Publication{Sequence: 1, Exchange: "verbs", RoutingKey: "own", Body: []byte("mine"), Mandatory: true}
	equal("returned", len(must(messages.PublishBatch(ctx, &pb.PublishRequest{Publications: []*pb.Publication{mine}})).Returned), 0)
	equal("own", bodies(must(own.Recv()).Deliveries), "mine ")
	own.CloseSend()
	_, err = own.Recv()
	equal("the end", err, io.EOF)
	refused[*pb.GetResponse]("its queue", codes.NotFound)(messages.Get(ctx, &pb.GetRequest{Queue: subscribed.Queue}))

	// A stream of publishes; what ends it, Recv says.
	publishing := must(messages.Publish(ctx))
	publishing.Send(&pb.PublishRequest{Publications: request.Publications[:2]})
	must(publishing.Recv())
	publishing.Send(&pb.PublishRequest{Publications: request.Publications[:1]})
	_, err = publishing.Recv()
	equal("a sequence that does not rise", status.Code(err), codes.InvalidArgument)

	equal("purged", must(messages.PurgeQueue(ctx, &pb.MessagesPurgeQueueRequest{Name: "verbs"})).Messages, 2)
	must(messages.Unbind(ctx, &pb.UnbindRequest{Binding: binding}))
	unrouted := &pb.Publication{Sequence: 1, Exchange: "verbs", RoutingKey: "k", Mandatory: true}
	returned := must(messages.PublishBatch(ctx, &pb.PublishRequest{Publications: []*pb.Publication{unrouted}})).Returned
	equal("unroutable", returned[0].ReplyCode, 312)
	equal("deleted", must(messages.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "verbs", IfEmpty: true})).Messages, 0)
	must(messages.DeleteExchange(ctx, &pb.DeleteExchangeRequest{Name: "verbs"}))
	refused[*pb.GetResponse]("the end of the queue", codes.NotFound)(messages.Get(ctx, &pb.GetRequest{Queue: "verbs"}))
	fmt.Println("all verbs")
}
