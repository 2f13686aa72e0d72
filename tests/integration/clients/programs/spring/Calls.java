import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.StringJoiner;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;
import org.springframework.amqp.core.*;
import org.springframework.amqp.rabbit.connection.*;
import org.springframework.amqp.rabbit.core.*;
import org.springframework.amqp.rabbit.listener.SimpleMessageListenerContainer;
import org.springframework.amqp.rabbit.listener.adapter.MessageListenerAdapter;
import org.springframework.context.support.GenericApplicationContext;

/**
 * Spring AMQP: RPC over a quorum queue, and events over a fanout to an anonymous (exclusive) queue
 * and an auto-delete one; steady calls until the test has seen enough. Arguments: the ports in the
 * order in which they are tried, then the longest time of a call in seconds. Says "ready" when calls
 * get through, and "done" when each was answered and none took too long.
 */
public final class Calls {
  private static final int CALLERS = 4;
  private static final int READY_CALLS = 12;
  private static final long PAUSE_MS = 100;
  private static final long CALL_TIMEOUT_MS = 3000;
  private static final long AGAIN_MS = 200;

  private static final Map<String, Integer> failed = new ConcurrentHashMap<>();
  private static final Set<String> heard = ConcurrentHashMap.newKeySet();
  private static volatile boolean stopped;

  private static void check(boolean holds, String what) {
    if (!holds) throw new AssertionError(what);
  }

  private static void note(Throwable error) {
    Throwable root = error;
    while (root.getCause() != null) root = root.getCause();
    String what = error.getClass().getSimpleName() + ": " + root.getMessage();
    if (failed.merge(what, 1, Integer::sum) == 1) System.out.println(what);
  }

  public static final class Worker {
    public Integer handleMessage(Integer number) {
      return 2 * number;
    }
  }

  private static SimpleMessageListenerContainer listens(
      ConnectionFactory factory, Queue queue, MessageListener listener) {
    SimpleMessageListenerContainer made = new SimpleMessageListenerContainer(factory);
    made.setQueues(queue);
    made.setMessageListener(listener);
    made.setMissingQueuesFatal(false);
    made.setRecoveryInterval(500);
    made.setFailedDeclarationRetryInterval(500);
    return made;
  }

  private static RabbitTemplate application(String addresses, GenericApplicationContext context) {
    CachingConnectionFactory factory = new CachingConnectionFactory();
    factory.setAddresses(addresses);
    factory.setAddressShuffleMode(AbstractConnectionFactory.AddressShuffleMode.NONE);
    factory.setUsername("guest");
    factory.setPassword("guest");
    RabbitTemplate template = new RabbitTemplate(factory);
    template.setReplyTimeout(CALL_TIMEOUT_MS);
    Queue work = QueueBuilder.durable("spring.work").quorum().build();
    Queue own = new AnonymousQueue();
    Queue shared = QueueBuilder.nonDurable("spring.shared").autoDelete().build();
    FanoutExchange events = new FanoutExchange("spring.events");
    MessageListenerAdapter worker = new MessageListenerAdapter(new Worker());
    RabbitAdmin admin = new RabbitAdmin(factory);
    context.registerBean("factory", ConnectionFactory.class, () -> factory);
    context.registerBean("work", Queue.class, () -> work);
    context.registerBean("own", Queue.class, () -> own);
    context.registerBean("shared", Queue.class, () -> shared);
    context.registerBean("events", FanoutExchange.class, () -> events);
    context.registerBean("toOwn", Binding.class, () -> BindingBuilder.bind(own).to(events));
    context.registerBean("toShared", Binding.class, () -> BindingBuilder.bind(shared).to(events));
    context.registerBean("admin", RabbitAdmin.class, () -> admin);
    context.registerBean(
        "worker", SimpleMessageListenerContainer.class, () -> listens(factory, work, worker));
    context.registerBean(
        "hears",
        SimpleMessageListenerContainer.class,
        () -> listens(factory, own, message -> heard.add("own " + new String(message.getBody()))));
    context.registerBean(
        "shares",
        SimpleMessageListenerContainer.class,
        () ->
            listens(factory, shared, message -> heard.add("shared " + new String(message.getBody()))));
    context.refresh();
    return template;
  }

  private static double call(RabbitTemplate template, int number) throws InterruptedException {
    long began = System.nanoTime();
    while (true) {
      try {
        Object answer = template.convertSendAndReceive("spring.work", number);
        check(answer != null, "no answer in time");
        check(answer.equals(2 * number), "wrong answer: " + answer);
        return (System.nanoTime() - began) / 1e9;
      } catch (RuntimeException | AssertionError error) {
        note(error);
        Thread.sleep(AGAIN_MS);
      }
    }
  }

  private static void hears(RabbitTemplate template) throws InterruptedException {
    heard.clear();
    for (int number = 0; number < 100; number++) {
      try {
        template.convertAndSend("spring.events", "", String.valueOf(number));
      } catch (RuntimeException error) {
        note(error);
      }
      Thread.sleep(PAUSE_MS);
      if (heard.stream().anyMatch(it -> it.startsWith("own"))
          && heard.stream().anyMatch(it -> it.startsWith("shared"))) return;
    }
    throw new AssertionError("not all events arrive: " + heard);
  }

  public static void main(String[] args) throws Exception {
    double bound = Double.parseDouble(args[args.length - 1]);
    StringJoiner addresses = new StringJoiner(",");
    for (int i = 0; i < args.length - 1; i++) addresses.add("127.0.0.1:" + args[i]);
    RabbitTemplate template = application(addresses.toString(), new GenericApplicationContext());
    ConcurrentLinkedQueue<Double> times = new ConcurrentLinkedQueue<>();
    AtomicInteger count = new AtomicInteger();
    ExecutorService pool = Executors.newFixedThreadPool(CALLERS);
    List<Future<?>> callers = new ArrayList<>();
    for (int n = 0; n < CALLERS; n++) {
      int first = n;
      callers.add(
          pool.submit(
              () -> {
                for (int number = first; !stopped; number += CALLERS) {
                  times.add(call(template, number));
                  if (count.incrementAndGet() == READY_CALLS) System.out.println("ready");
                  Thread.sleep(PAUSE_MS);
                }
                return null;
              }));
    }
    new BufferedReader(new InputStreamReader(System.in)).readLine();
    stopped = true;
    for (Future<?> caller : callers) caller.get((long) bound, TimeUnit.SECONDS);
    double slowest = Collections.max(times);
    System.out.printf("%d calls, slowest %.1f s, tries failed: %s%n", times.size(), slowest, failed);
    check(slowest < bound, "a call took " + slowest + " s");
    hears(template);
    System.out.println("done");
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }
}
