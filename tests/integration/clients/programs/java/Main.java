import com.rabbitmq.client.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;

/**
 * RabbitMQ's Java client against a broker: everything, recover, blocked, flow. Used by test_java.py and
 * nothing else. Says "ready" when the test may do its part, and ends with status 0 when all held.
 */
public final class Main {
  private static final long PATIENCE_S = 40;

  private static void check(boolean holds, String what, Object... found) {
    if (!holds) throw new AssertionError(what + " " + Arrays.toString(found));
  }

  private static void say(String word) {
    System.out.println(word);
    System.out.flush();
  }

  private static <T> T next(BlockingQueue<T> from, String what) throws InterruptedException {
    T item = from.poll(PATIENCE_S, TimeUnit.SECONDS);
    check(item != null, "not within time: " + what);
    return item;
  }

  private static byte[] text(String body) {
    return body.getBytes(StandardCharsets.UTF_8);
  }

  private static void publish(Channel ch, String key, boolean mandatory, byte[] body)
      throws Exception {
    ch.basicPublish("", key, mandatory, MessageProperties.PERSISTENT_BASIC, body);
    ch.waitForConfirmsOrDie(PATIENCE_S * 1000);
  }

  private static void work(Channel ch) throws Exception {
    ch.queueDeclare("java.dead", true, false, false, null);
    ch.queueDeclare(
        "java.work", true, false, false,
        Map.of("x-queue-type", "quorum", "x-dead-letter-exchange", "",
            "x-dead-letter-routing-key", "java.dead"));
    ch.confirmSelect();
    byte[] big = new byte[1 << 20];
    new Random(7).nextBytes(big);
    publish(ch, "java.work", false, big);
    for (int i = 1; i < 20; i++) publish(ch, "java.work", false, text("" + i));
    BlockingQueue<Return> returns = new LinkedBlockingQueue<>();
    ch.addReturnListener(returns::add);
    publish(ch, "java.nowhere", true, text("x"));
    check(next(returns, "return").getReplyCode() == 312, "reply code");

    BlockingQueue<Delivery> inbox = new LinkedBlockingQueue<>();
    ch.basicQos(5);
    ch.basicConsume("java.work", false, "worker", (tag, item) -> inbox.add(item), tag -> {});
    List<Delivery> held = new ArrayList<>();
    while (held.size() < 5) held.add(next(inbox, "delivery"));
    check(Arrays.equals(held.get(0).getBody(), big), "big body");
    check(inbox.poll(300, TimeUnit.MILLISECONDS) == null, "a sixth within a prefetch of 5");
    ch.basicNack(held.get(0).getEnvelope().getDeliveryTag(), false, true);
    ch.basicReject(held.get(1).getEnvelope().getDeliveryTag(), false);
    ch.basicAck(held.get(4).getEnvelope().getDeliveryTag(), true);
    int redelivered = 0;
    for (int seen = 3; seen < 19; seen++) {
      Delivery item = next(inbox, "delivery");
      if (item.getEnvelope().isRedeliver()) {
        redelivered++;
        check(Arrays.equals(item.getBody(), big), "redelivered body");
      }
      ch.basicAck(item.getEnvelope().getDeliveryTag(), false);
    }
    check(redelivered == 1, "redelivered", redelivered);
    ch.basicCancel("worker");
  }

  private static void letter(Channel ch) throws Exception {
    BlockingQueue<Delivery> inbox = new LinkedBlockingQueue<>();
    String tag = ch.basicConsume("java.dead", true, (t, item) -> inbox.add(item), t -> {});
    Object deaths = next(inbox, "dead letter").getProperties().getHeaders().get("x-death");
    Map<?, ?> death = (Map<?, ?>) ((List<?>) deaths).get(0);
    check(death.get("reason").toString().equals("rejected"), "reason", death);
    check(death.get("queue").toString().equals("java.work"), "queue", death);
    ch.basicCancel(tag);
  }

  private static void everything(ConnectionFactory factory) throws Exception {
    try (Connection connection = factory.newConnection()) {
      Channel ch = connection.createChannel();
      work(ch);
      letter(ch);
      BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
      ch.queueDeclare("java.gone", true, false, false, null);
      ch.basicConsume("java.gone", true, "left", (tag, item) -> {}, cancelled::add);
      Channel other = connection.createChannel();
      other.queueDelete("java.gone");
      check(next(cancelled, "cancel").equals("left"), "cancelled tag");
      try {
        other.queueDeclarePassive("java.missing");
        throw new AssertionError("a missing queue was found");
      } catch (java.io.IOException error) {
        Method why = ((ShutdownSignalException) error.getCause()).getReason();
        check(((AMQP.Channel.Close) why).getReplyCode() == 404, "channel error", why);
      }
      publish(ch, "java.dead", false, text("still here"));
    }
  }

  private static void recover(ConnectionFactory factory) throws Exception {
    factory.setNetworkRecoveryInterval(200);
    try (Connection connection = factory.newConnection()) {
      CountDownLatch recovered = new CountDownLatch(1);
      ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
        public void handleRecovery(Recoverable it) {
          recovered.countDown();
        }

        public void handleRecoveryStarted(Recoverable it) {}
      });
      Channel ch = connection.createChannel();
      ch.confirmSelect();
      ch.queueDeclare("java.recover", true, false, false, Map.of("x-queue-type", "quorum"));
      // A server-named exclusive queue with a binding: the client makes it anew.
      String own = ch.queueDeclare().getQueue();
      ch.queueBind(own, "amq.topic", "a.#");
      BlockingQueue<String> inbox = new LinkedBlockingQueue<>();
      // The member may be killed before it has noted on disk that "before" was delivered.
      DeliverCallback put = (tag, item) -> {
        if (!item.getEnvelope().isRedeliver()) inbox.add(new String(item.getBody()));
      };
      ch.basicConsume("java.recover", true, put, tag -> {});
      ch.basicConsume(own, true, put, tag -> {});
      publish(ch, "java.recover", false, text("before"));
      check(next(inbox, "before the restart").equals("before"), "before");
      say("ready");
      check(recovered.await(PATIENCE_S, TimeUnit.SECONDS), "recovered");
      publish(ch, "java.recover", false, text("after"));
      check(next(inbox, "after the restart").equals("after"), "after");
      ch.basicPublish("amq.topic", "a.b", null, text("topic"));
      check(next(inbox, "through the binding").equals("topic"), "topic");
    }
  }

  private static void blocked(ConnectionFactory factory) throws Exception {
    try (Connection connection = factory.newConnection()) {
      BlockingQueue<String> heard = new LinkedBlockingQueue<>();
      connection.addBlockedListener(reason -> heard.add("blocked " + reason), () -> heard.add("free"));
      Channel ch = connection.createChannel();
      String own = ch.queueDeclare().getQueue();
      say("ready");
      System.in.read();
      ch.basicPublish("", own, null, text("x"));
      check(next(heard, "blocked").startsWith("blocked "), "blocked");
      say("blocked");
      check(next(heard, "unblocked").equals("free"), "unblocked");
    }
  }

  /** Whether a thread waits within the client until channel.flow lets it send content. */
  private static boolean isHeld(Thread publisher) {
    if (publisher.getState() != Thread.State.WAITING) return false;
    for (StackTraceElement frame : publisher.getStackTrace())
      if (frame.getMethodName().equals("quiescingTransmit")) return true;
    return false;
  }

  private static void flow(ConnectionFactory factory) throws Exception {
    try (Connection connection = factory.newConnection()) {
      Channel ch = connection.createChannel();
      ch.confirmSelect();
      ch.queueDeclare("java.flow", true, false, false, null);
      BlockingQueue<String> confirmed = new ArrayBlockingQueue<>(1);
      Thread publisher =
          new Thread(
              () -> {
                try {
                  while (true) {
                    publish(ch, "java.flow", false, text("x"));
                    confirmed.offer("one");
                  }
                } catch (Exception ended) {
                  confirmed.clear();
                  confirmed.offer(ended.toString());
                }
              });
      publisher.setDaemon(true);
      publisher.start();
      check(next(confirmed, "a confirm").equals("one"), "published");
      say("ready");
      while (!isHeld(publisher)) {
        check(publisher.isAlive(), "it publishes", confirmed);
        Thread.sleep(10);
      }
      confirmed.clear();
      say("held");
      System.in.read();
      check(isHeld(publisher), "it still waits", confirmed);
      say("still");
      check(next(confirmed, "it goes on").equals("one"), "it goes on");
    }
  }

  public static void main(String[] args) throws Exception {
    ConnectionFactory factory = new ConnectionFactory();
    factory.setHost("127.0.0.1");
    factory.setPort(Integer.parseInt(args[1]));
    switch (args[0]) {
      case "everything" -> everything(factory);
      case "recover" -> recover(factory);
      case "blocked" -> blocked(factory);
      case "flow" -> flow(factory);
      default -> throw new IllegalArgumentException(args[0]);
    }
    say("done");
    System.exit(0);
  }
}
