import com.rabbitmq.client.Channel;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.BooleanSupplier;
import java.util.stream.IntStream;
import org.springframework.amqp.AmqpAuthenticationException;
import org.springframework.amqp.AmqpException;
import org.springframework.amqp.AmqpIOException;
import org.springframework.amqp.AmqpRejectAndDontRequeueException;
import org.springframework.amqp.core.*;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.rabbit.AsyncRabbitTemplate;
import org.springframework.amqp.rabbit.annotation.EnableRabbit;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.batch.SimpleBatchingStrategy;
import org.springframework.amqp.rabbit.config.RetryInterceptorBuilder;
import org.springframework.amqp.rabbit.config.SimpleRabbitListenerContainerFactory;
import org.springframework.amqp.rabbit.connection.*;
import org.springframework.amqp.rabbit.connection.CachingConnectionFactory.ConfirmType;
import org.springframework.amqp.rabbit.core.*;
import org.springframework.amqp.rabbit.listener.*;
import org.springframework.amqp.rabbit.listener.adapter.MessageListenerAdapter;
import org.springframework.amqp.rabbit.listener.api.ChannelAwareMessageListener;
import org.springframework.amqp.rabbit.retry.RepublishMessageRecoverer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.context.support.GenericApplicationContext;
import org.springframework.messaging.handler.annotation.SendTo;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;

/**
 * The main uses of Spring AMQP, each by itself: a line PASS or FAIL per use. Arguments: the AMQP
 * port, the HTTP port.
 */
public final class Uses {
  private static final long WAIT_MS = 15_000;
  private static int port;
  private static int httpPort;
  private static int failed;
  private static final List<AutoCloseable> opened = new ArrayList<>();

  private interface Use {
    void run() throws Exception;
  }

  private static void check(boolean holds, Object what) {
    if (!holds) throw new AssertionError(String.valueOf(what));
  }

  private static void until(String what, BooleanSupplier holds) throws Exception {
    long end = System.nanoTime() + WAIT_MS * 1_000_000;
    while (!holds.getAsBoolean()) {
      if (System.nanoTime() > end) throw new AssertionError("not in time: " + what);
      Thread.sleep(20);
    }
  }

  private static <T> T next(BlockingQueue<T> from) throws Exception {
    T found = from.poll(WAIT_MS, TimeUnit.MILLISECONDS);
    check(found != null, "nothing came");
    return found;
  }

  private static <E extends Throwable> E raises(Class<E> kind, Use body) {
    try {
      body.run();
    } catch (Throwable error) {
      for (Throwable at = error; at != null; at = at.getCause())
        if (kind.isInstance(at)) return kind.cast(at);
      throw new AssertionError("other error: " + error);
    }
    throw new AssertionError("no " + kind.getSimpleName());
  }

  private static String name() {
    return "spring." + UUID.randomUUID();
  }

  private static CachingConnectionFactory factory() {
    CachingConnectionFactory made = new CachingConnectionFactory("127.0.0.1", port);
    made.setUsername("guest");
    made.setPassword("guest");
    opened.add(made::destroy);
    return made;
  }

  private static RabbitTemplate template() {
    RabbitTemplate made = new RabbitTemplate(factory());
    made.setReceiveTimeout(WAIT_MS);
    made.setReplyTimeout(WAIT_MS);
    opened.add(made::stop);
    return made;
  }

  private static RabbitAdmin admin(RabbitTemplate template) {
    return new RabbitAdmin(template.getConnectionFactory());
  }

  private static String queue(RabbitTemplate template) {
    Queue made = QueueBuilder.durable(name()).build();
    admin(template).declareQueue(made);
    return made.getName();
  }

  private static <C extends AbstractMessageListenerContainer> C listens(
      C made, MessageListener listener, String... queues) {
    made.setQueueNames(queues);
    made.setMessageListener(listener);
    return started(made);
  }

  private static <C extends AbstractMessageListenerContainer> C started(C made) {
    made.afterPropertiesSet();
    made.start();
    opened.add(made::stop);
    return made;
  }

  private static SimpleMessageListenerContainer simple(RabbitTemplate template) {
    SimpleMessageListenerContainer made =
        new SimpleMessageListenerContainer(template.getConnectionFactory());
    made.setReceiveTimeout(100);
    made.setRecoveryInterval(200);
    made.setShutdownTimeout(2000);
    return made;
  }

  private static DirectMessageListenerContainer direct(RabbitTemplate template) {
    DirectMessageListenerContainer made =
        new DirectMessageListenerContainer(template.getConnectionFactory());
    ThreadPoolTaskScheduler scheduler = new ThreadPoolTaskScheduler();
    scheduler.setDaemon(true);
    scheduler.afterPropertiesSet();
    made.setTaskScheduler(scheduler);
    made.setMonitorInterval(200);
    made.setRecoveryInterval(200);
    made.setShutdownTimeout(2000);
    opened.add(scheduler::destroy);
    return made;
  }

  private static String text(Message message) {
    return new String(message.getBody(), StandardCharsets.UTF_8);
  }

  private static int count(RabbitTemplate template, String queue) {
    return (int) Objects.requireNonNull(admin(template).getQueueInfo(queue)).getMessageCount();
  }

  private static HttpResponse<String> http(String method, String path) throws Exception {
    String credentials = Base64.getEncoder().encodeToString("guest:guest".getBytes());
    HttpRequest request =
        HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + httpPort + "/api/" + path))
            .header("Authorization", "Basic " + credentials)
            .method(method, HttpRequest.BodyPublishers.noBody())
            .build();
    return HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
  }

  private static void use(String title, Use body) {
    ExecutorService one = Executors.newSingleThreadExecutor();
    try {
      one.submit(
              () -> {
                body.run();
                return null;
              })
          .get(60, TimeUnit.SECONDS);
      System.out.println("PASS " + title);
    } catch (Exception error) {
      failed++;
      StringBuilder why = new StringBuilder();
      for (Throwable at = error; at != null; at = at.getCause())
        why.append(" ; ").append(String.valueOf(at).replace('\n', ' '));
      System.out.println("FAIL " + title + " |" + why);
    } finally {
      one.shutdownNow();
      Collections.reverse(opened);
      for (AutoCloseable each : opened) {
        try {
          each.close();
        } catch (Exception ignored) {
          // The next use has connections of its own.
        }
      }
      opened.clear();
    }
  }

  private static void templates() {
    use("template: send, receive, convert", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      t.convertAndSend(q, "hello");
      check("hello".equals(t.receiveAndConvert(q)), "body");
      t.convertAndSend(q, (Object) Map.of("a", "b"));
      Message raw = t.receive(q);
      check(raw.getMessageProperties().getContentType().equals("application/x-java-serialized-object"), "type");
      check(t.receive(q, 100) == null, "empty");
    });
    use("template: all properties and headers", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      Date now = new Date(System.currentTimeMillis() / 1000 * 1000);
      t.convertAndSend("", q, "x", m -> {
        MessageProperties p = m.getMessageProperties();
        p.setAppId("a"); p.setPriority(3); p.setType("t"); p.setTimestamp(now); p.setCorrelationId("c");
        p.setMessageId("m"); p.setReplyTo("r"); p.setContentEncoding("zip"); p.setExpiration("60000");
        p.setUserId("guest"); p.setDeliveryMode(MessageDeliveryMode.NON_PERSISTENT);
        p.setHeader("i", 7); p.setHeader("l", 1L << 40); p.setHeader("s", "t"); p.setHeader("b", true);
        p.setHeader("d", 1.5); p.setHeader("list", List.of(1, "two")); p.setHeader("map", Map.of("x", Map.of("y", 1)));
        p.setHeader("at", now);
        return m;
      });
      MessageProperties p = t.receive(q).getMessageProperties();
      check(p.getAppId().equals("a") && p.getPriority() == 3 && p.getType().equals("t"), p);
      check(p.getTimestamp().equals(now) && p.getCorrelationId().equals("c") && p.getMessageId().equals("m"), p);
      check(p.getReplyTo().equals("r") && p.getContentEncoding().equals("zip") && p.getExpiration().equals("60000"), p);
      check(p.getReceivedUserId().equals("guest"), p);
      check(p.getReceivedDeliveryMode() == MessageDeliveryMode.NON_PERSISTENT, p);
      Map<String, Object> h = p.getHeaders();
      check(h.get("i").equals(7) && h.get("l").equals(1L << 40) && h.get("b").equals(true) && h.get("d").equals(1.5), h);
      check(h.get("list").equals(List.of(1, "two")) && h.get("map").equals(Map.of("x", Map.of("y", 1))), h);
      check(h.get("at").equals(now), h);
    });
    use("template: 8 MiB", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      t.convertAndSend(q, new byte[8 << 20]);
      check(((byte[]) t.receiveAndConvert(q)).length == 8 << 20, "size");
    });
    use("template: correlated confirms", () -> {
      RabbitTemplate t = template();
      ((CachingConnectionFactory) t.getConnectionFactory()).setPublisherConfirmType(ConfirmType.CORRELATED);
      String q = queue(t);
      List<CorrelationData> sent = new ArrayList<>();
      for (int i = 0; i < 500; i++) {
        sent.add(new CorrelationData("" + i));
        t.convertAndSend("", q, i, sent.get(i));
      }
      for (CorrelationData each : sent) check(each.getFuture().get(15, TimeUnit.SECONDS).ack(), "ack");
    });
    use("template: confirm and return of what is unroutable", () -> {
      RabbitTemplate t = template();
      CachingConnectionFactory f = (CachingConnectionFactory) t.getConnectionFactory();
      f.setPublisherConfirmType(ConfirmType.CORRELATED);
      f.setPublisherReturns(true);
      t.setMandatory(true);
      CorrelationData mark = new CorrelationData("1");
      t.convertAndSend("", name(), "x", mark);
      check(mark.getFuture().get(15, TimeUnit.SECONDS).ack(), "ack");
      check(mark.getReturned() != null && mark.getReturned().getReplyCode() == 312, mark.getReturned());
    });
    use("template: confirm of a missing exchange", () -> {
      RabbitTemplate t = template();
      ((CachingConnectionFactory) t.getConnectionFactory()).setPublisherConfirmType(ConfirmType.CORRELATED);
      CorrelationData mark = new CorrelationData("1");
      t.convertAndSend("no-such-exchange", "k", "x", mark);
      CorrelationData.Confirm said = mark.getFuture().get(15, TimeUnit.SECONDS);
      check(!said.ack() && String.valueOf(said.reason()).contains("404"), said);
    });
    use("template: negative confirm of a full queue", () -> {
      RabbitTemplate t = template();
      ((CachingConnectionFactory) t.getConnectionFactory()).setPublisherConfirmType(ConfirmType.CORRELATED);
      Queue q = QueueBuilder.durable(name()).maxLength(1L).overflow(QueueBuilder.Overflow.rejectPublish).build();
      admin(t).declareQueue(q);
      boolean refused = false;
      for (int i = 0; i < 5 && !refused; i++) {
        CorrelationData mark = new CorrelationData("" + i);
        t.convertAndSend("", q.getName(), "x", mark);
        refused = !mark.getFuture().get(15, TimeUnit.SECONDS).ack();
      }
      check(refused, "never refused");
    });
    use("template: simple confirms in one scope", () -> {
      RabbitTemplate t = template();
      ((CachingConnectionFactory) t.getConnectionFactory()).setPublisherConfirmType(ConfirmType.SIMPLE);
      String q = queue(t);
      check(t.invoke(on -> {
        for (int i = 0; i < 100; i++) on.convertAndSend(q, i);
        on.waitForConfirmsOrDie(15_000);
        return true;
      }), "confirmed");
      check(count(t, q) == 100, count(t, q));
    });
    use("template: transactions, commit and rollback", () -> {
      RabbitTemplate t = template();
      t.setChannelTransacted(true);
      String q = queue(t);
      t.convertAndSend(q, "x");
      check("x".equals(t.receiveAndConvert(q)), "committed");
      t.execute(channel -> {
        channel.txSelect();
        channel.basicPublish("", q, null, "y".getBytes());
        channel.txRollback();
        return null;
      });
      check(count(t, q) == 0, "rolled back");
    });
    use("template: batches", () -> {
      RabbitTemplate plain = template();
      ThreadPoolTaskScheduler scheduler = new ThreadPoolTaskScheduler();
      scheduler.setDaemon(true);
      scheduler.afterPropertiesSet();
      opened.add(scheduler::destroy);
      BatchingRabbitTemplate t =
          new BatchingRabbitTemplate(
              plain.getConnectionFactory(), new SimpleBatchingStrategy(10, 10_000, 500), scheduler);
      String q = queue(plain);
      for (int i = 0; i < 25; i++) t.convertAndSend("", q, "" + i);
      BlockingQueue<String> heard = new LinkedBlockingQueue<>();
      listens(simple(plain), m -> heard.add(text(m)), q);
      for (int i = 0; i < 25; i++) check(next(heard).equals("" + i), i);
    });
    use("template: requests over amq.rabbitmq.reply-to", () -> requests(template()));
    use("template: requests over temporary reply queues", () -> {
      RabbitTemplate t = template();
      t.setUseTemporaryReplyQueues(true);
      requests(t);
    });
    use("template: requests over a fixed reply queue", () -> {
      RabbitTemplate t = template();
      String replies = queue(t);
      t.setReplyAddress(replies);
      SimpleMessageListenerContainer container = simple(t);
      container.setQueueNames(replies);
      container.setMessageListener(t);
      started(container);
      requests(t);
    });
    use("template: a request that nobody answers", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      t.setReplyTimeout(300);
      check(t.convertSendAndReceive(q, "x") == null, "an answer");
    });
    use("template: a request that is unroutable", () -> {
      RabbitTemplate t = template();
      ((CachingConnectionFactory) t.getConnectionFactory()).setPublisherReturns(true);
      t.setMandatory(true);
      raises(org.springframework.amqp.core.AmqpMessageReturnedException.class, () -> t.convertSendAndReceive(name(), "x"));
    });
    use("template: asynchronous requests", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      answers(t, q);
      AsyncRabbitTemplate asks = new AsyncRabbitTemplate(t);
      asks.start();
      opened.add(asks::stop);
      List<CompletableFuture<String>> asked =
          IntStream.range(0, 50).mapToObj(i -> (CompletableFuture<String>) asks.<String>convertSendAndReceive(q, "a" + i)).toList();
      for (int i = 0; i < 50; i++) check(asked.get(i).get(15, TimeUnit.SECONDS).equals("A" + i), i);
    });
  }

  private static void answers(RabbitTemplate template, String queue) {
    listens(simple(template), new MessageListenerAdapter(new Upper()), queue);
  }

  public static final class Upper {
    public String handleMessage(String said) {
      return said.toUpperCase(Locale.ROOT);
    }
  }

  private static void requests(RabbitTemplate t) throws Exception {
    RabbitTemplate server = template();
    String q = queue(server);
    answers(server, q);
    ExecutorService pool = Executors.newFixedThreadPool(4);
    List<Future<Object>> asked = new ArrayList<>();
    for (int i = 0; i < 40; i++) {
      String said = "a" + i;
      asked.add(pool.submit(() -> t.convertSendAndReceive(q, said)));
    }
    for (int i = 0; i < 40; i++) check(("A" + i).equals(asked.get(i).get(20, TimeUnit.SECONDS)), i);
    pool.shutdown();
  }

  private static void admins() {
    use("admin: queues, exchanges, bindings, purge, information", () -> {
      RabbitTemplate t = template();
      RabbitAdmin a = admin(t);
      String q = a.declareQueue(QueueBuilder.durable(name()).build());
      TopicExchange x = new TopicExchange(name());
      a.declareExchange(x);
      a.declareBinding(BindingBuilder.bind(new Queue(q)).to(x).with("a.#"));
      t.convertAndSend(x.getName(), "a.b", "x");
      until("a message", () -> count(t, q) == 1);
      check(a.purgeQueue(q) == 1, "purged");
      check(a.getQueueProperties(q).get(RabbitAdmin.QUEUE_CONSUMER_COUNT).equals(0L)
          || a.getQueueProperties(q).get(RabbitAdmin.QUEUE_CONSUMER_COUNT).equals(0), a.getQueueProperties(q));
      a.removeBinding(BindingBuilder.bind(new Queue(q)).to(x).with("a.#"));
      check(a.deleteQueue(q) && a.deleteExchange(x.getName()), "deleted");
      check(a.getQueueInfo(q) == null, "gone");
    });
    use("admin: queue types and arguments of the builder", () -> {
      RabbitAdmin a = admin(template());
      for (Queue each : List.of(
          QueueBuilder.durable(name()).quorum().deliveryLimit(3).build(),
          QueueBuilder.durable(name()).singleActiveConsumer().ttl(60_000).expires(60_000).maxLengthBytes(1000).build(),
          QueueBuilder.durable(name()).lazy().maxPriority(5).deadLetterExchange("").deadLetterRoutingKey("d").build(),
          QueueBuilder.durable(name()).leaderLocator(QueueBuilder.LeaderLocator.clientLocal).build())) {
        check(each.getName().equals(a.declareQueue(each)), each);
        a.deleteQueue(each.getName());
      }
    });
    use("admin: all exchange types, alternate, internal", () -> {
      RabbitAdmin a = admin(template());
      String other = name();
      a.declareExchange(new FanoutExchange(other));
      for (Exchange each : List.of(new DirectExchange(name()), new HeadersExchange(name()),
          ExchangeBuilder.topicExchange(name()).alternate(other).build(),
          ExchangeBuilder.directExchange(name()).internal().build(),
          ExchangeBuilder.fanoutExchange(name()).autoDelete().build())) {
        a.declareExchange(each);
        a.declareBinding(BindingBuilder.bind(new FanoutExchange(other)).to(each).with("k").noargs());
        check(a.deleteExchange(each.getName()), each);
      }
    });
    use("admin: other properties are an error that says which", () -> {
      RabbitAdmin a = admin(template());
      String q = a.declareQueue(QueueBuilder.durable(name()).build());
      AmqpIOException error = raises(AmqpIOException.class, () -> a.declareQueue(QueueBuilder.nonDurable(q).build()));
      check(String.valueOf(error.getCause().getCause()).contains("inequivalent arg 'durable'"), error.getCause().getCause());
    });
    use("admin: declared again on a new connection", () -> {
      RabbitTemplate t = template();
      Queue own = QueueBuilder.nonDurable(name()).exclusive().build();
      String q = own.getName();
      GenericApplicationContext context = new GenericApplicationContext();
      context.registerBean("own", Queue.class, () -> own);
      context.registerBean("admin", RabbitAdmin.class, () -> admin(t));
      context.refresh();
      opened.add(context);
      t.convertAndSend(q, "x");
      ((CachingConnectionFactory) t.getConnectionFactory()).resetConnection();
      t.convertAndSend(q, "x");
      check("x".equals(t.receiveAndConvert(q)), "lost");
    });
    use("admin: anonymous queue, server's name", () -> {
      RabbitTemplate t = template();
      RabbitAdmin a = admin(t);
      check(a.declareQueue().getName().startsWith("amq.gen-"), "name");
      AnonymousQueue own = new AnonymousQueue();
      a.declareQueue(own);
      t.convertAndSend(own.getName(), "x");
      check("x".equals(t.receiveAndConvert(own.getName())), "lost");
    });
  }

  private static void containers() {
    use("simple container: order, acknowledged", () -> order(template(), Uses::simple));
    use("direct container: order, acknowledged", () -> order(template(), Uses::direct));
    use("simple container: concurrency and prefetch", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      SimpleMessageListenerContainer c = simple(t);
      c.setConcurrentConsumers(4);
      c.setPrefetchCount(2);
      Set<String> tags = ConcurrentHashMap.newKeySet();
      CountDownLatch all = new CountDownLatch(400);
      listens(c, m -> { tags.add(m.getMessageProperties().getConsumerTag()); all.countDown(); }, q);
      until("four consumers", () -> admin(t).getQueueInfo(q).getConsumerCount() == 4);
      for (int i = 0; i < 400; i++) t.convertAndSend(q, i);
      check(all.await(20, TimeUnit.SECONDS), all.getCount());
      check(tags.size() == 4, tags);
    });
    use("direct container: queues come and go while it runs", () -> {
      RabbitTemplate t = template();
      String one = queue(t), two = queue(t);
      BlockingQueue<String> heard = new LinkedBlockingQueue<>();
      DirectMessageListenerContainer c = direct(t);
      c.setConsumersPerQueue(2);
      listens(c, m -> heard.add(text(m)), one);
      until("two consumers", () -> admin(t).getQueueInfo(one).getConsumerCount() == 2);
      c.addQueueNames(two);
      t.convertAndSend(two, "x");
      check(next(heard).equals("x"), "second");
      c.removeQueueNames(one);
      until("no consumer", () -> admin(t).getQueueInfo(one).getConsumerCount() == 0);
    });
    use("simple container: requeued, then redelivered", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      BlockingQueue<Boolean> heard = new LinkedBlockingQueue<>();
      listens(simple(t), m -> {
        heard.add(m.getMessageProperties().isRedelivered());
        if (!m.getMessageProperties().isRedelivered()) throw new IllegalStateException("again");
      }, q);
      t.convertAndSend(q, "x");
      check(!next(heard) && next(heard), "flags");
    });
    use("simple container: rejected to a dead letter exchange", () -> {
      RabbitTemplate t = template();
      String dead = queue(t);
      Queue q = QueueBuilder.durable(name()).deadLetterExchange("").deadLetterRoutingKey(dead).build();
      admin(t).declareQueue(q);
      listens(simple(t), m -> { throw new AmqpRejectAndDontRequeueException("no"); }, q.getName());
      t.convertAndSend(q.getName(), "x");
      Map<String, ?> death = t.receive(dead).getMessageProperties().getXDeathHeader().get(0);
      check("rejected".equals(death.get("reason")) && q.getName().equals(death.get("queue")), death);
    });
    use("simple container: manual acknowledgement", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      SimpleMessageListenerContainer c = simple(t);
      c.setAcknowledgeMode(AcknowledgeMode.MANUAL);
      BlockingQueue<String> heard = new LinkedBlockingQueue<>();
      ChannelAwareMessageListener listener = (Message m, Channel channel) -> {
        if (m.getMessageProperties().isRedelivered()) channel.basicAck(m.getMessageProperties().getDeliveryTag(), false);
        else channel.basicNack(m.getMessageProperties().getDeliveryTag(), false, true);
        heard.add(text(m));
      };
      listens(c, listener, q);
      t.convertAndSend(q, "x");
      check(next(heard).equals("x") && next(heard).equals("x"), "twice");
      c.stop();
      check(count(t, q) == 0, count(t, q));
    });
    use("simple container: transactions", () -> {
      RabbitTemplate t = template();
      t.setChannelTransacted(true);
      String q = queue(t), out = queue(t);
      SimpleMessageListenerContainer c = simple(t);
      c.setChannelTransacted(true);
      BlockingQueue<Boolean> heard = new LinkedBlockingQueue<>();
      listens(c, m -> {
        t.convertAndSend(out, "from " + text(m));
        heard.add(m.getMessageProperties().isRedelivered());
        if (!m.getMessageProperties().isRedelivered()) throw new IllegalStateException("roll back");
      }, q);
      t.convertAndSend(q, "x");
      next(heard);
      next(heard);
      check("from x".equals(t.receiveAndConvert(out)), "sent");
      Thread.sleep(300);
      check(count(t, out) == 0, "sent twice");
    });
    use("simple container: consumer batches", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      SimpleMessageListenerContainer c = simple(t);
      c.setConsumerBatchEnabled(true);
      c.setBatchSize(20);
      c.setPrefetchCount(40);
      c.setQueueNames(q);
      BlockingQueue<String> heard = new LinkedBlockingQueue<>();
      c.setMessageListener((BatchMessageListener) all -> all.forEach(m -> heard.add(text(m))));
      started(c);
      for (int i = 0; i < 105; i++) t.convertAndSend(q, "" + i);
      for (int i = 0; i < 105; i++) check(next(heard).equals("" + i), i);
    });
    use("simple container: exclusive consumer, the second waits", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      BlockingQueue<String> heard = new LinkedBlockingQueue<>();
      SimpleMessageListenerContainer first = simple(t), second = simple(t);
      first.setExclusive(true);
      second.setExclusive(true);
      listens(first, m -> heard.add("first"), q);
      until("a consumer", () -> admin(t).getQueueInfo(q).getConsumerCount() == 1);
      listens(second, m -> heard.add("second"), q);
      t.convertAndSend(q, "x");
      check(next(heard).equals("first"), "who");
      first.stop();
      until("a consumer", () -> admin(t).getQueueInfo(q).getConsumerCount() == 1);
      t.convertAndSend(q, "x");
      check(next(heard).equals("second"), "who");
    });
    use("simple container: consumer priority", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      BlockingQueue<String> heard = new LinkedBlockingQueue<>();
      SimpleMessageListenerContainer low = simple(t), high = simple(t);
      high.setConsumerArguments(Map.of("x-priority", 10));
      listens(low, m -> heard.add("low"), q);
      listens(high, m -> heard.add("high"), q);
      until("two consumers", () -> admin(t).getQueueInfo(q).getConsumerCount() == 2);
      for (int i = 0; i < 20; i++) t.convertAndSend(q, "x");
      for (int i = 0; i < 20; i++) check(next(heard).equals("high"), i);
    });
    for (boolean isSimple : List.of(true, false)) {
      use((isSimple ? "simple" : "direct") + " container: its queue is deleted and made again", () -> {
        RabbitTemplate t = template();
        String q = queue(t);
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        AbstractMessageListenerContainer c = isSimple ? simple(t) : direct(t);
        listens(c, m -> heard.add(text(m)), q);
        t.convertAndSend(q, "before");
        check(next(heard).equals("before"), "before");
        admin(t).deleteQueue(q);
        Thread.sleep(500);
        admin(t).declareQueue(QueueBuilder.durable(q).build());
        t.convertAndSend(q, "after");
        check(next(heard).equals("after"), "after");
      });
      use((isSimple ? "simple" : "direct") + " container: its connection is cut", () -> {
        RabbitTemplate t = template();
        String mark = name();
        ((CachingConnectionFactory) t.getConnectionFactory()).setConnectionNameStrategy(f -> mark);
        String q = queue(t);
        Set<String> heard = ConcurrentHashMap.newKeySet();
        listens(isSimple ? simple(t) : direct(t), m -> heard.add(text(m)), q);
        t.convertAndSend(q, "before");
        until("before", () -> heard.contains("before"));
        cut(mark);
        until("after", () -> {
          try {
            t.convertAndSend(q, "after");
          } catch (AmqpException error) {
            // The next try has another connection.
          }
          return heard.contains("after");
        });
      });
    }
    use("retries, then republished", () -> {
      RabbitTemplate t = template();
      String q = queue(t), bad = queue(t);
      SimpleMessageListenerContainer c = simple(t);
      c.setAdviceChain(RetryInterceptorBuilder.stateless().maxRetries(2)
          .backOffOptions(10, 1, 10).recoverer(new RepublishMessageRecoverer(t, "", bad)).build());
      BlockingQueue<String> heard = new LinkedBlockingQueue<>();
      listens(c, m -> { heard.add(text(m)); throw new IllegalStateException("no"); }, q);
      t.convertAndSend(q, "x");
      Message found = t.receive(bad);
      check(found.getMessageProperties().getHeaders().containsKey("x-exception-message"), found.getMessageProperties());
      check(heard.size() == 3, heard.size());
    });
    use("quorum queue: delivery limit and x-delivery-count", () -> {
      RabbitTemplate t = template();
      String dead = queue(t);
      Queue q = QueueBuilder.durable(name()).quorum().deliveryLimit(2)
          .deadLetterExchange("").deadLetterRoutingKey(dead).build();
      admin(t).declareQueue(q);
      BlockingQueue<Long> counts = new LinkedBlockingQueue<>();
      listens(simple(t), m -> {
        Object found = m.getMessageProperties().getHeaders().get("x-delivery-count");
        counts.add(found == null ? 0 : ((Number) found).longValue());
        throw new IllegalStateException("again");
      }, q.getName());
      t.convertAndSend(q.getName(), "x");
      Map<String, ?> death = t.receive(dead).getMessageProperties().getXDeathHeader().get(0);
      check("delivery_limit".equals(death.get("reason")), death);
      check(List.copyOf(counts).equals(List.of(0L, 1L, 2L)), counts);
    });
    use("delayed exchange: setDelayed and setDelayLong", () -> {
      RabbitTemplate t = template();
      String q = queue(t);
      DirectExchange later = new DirectExchange(name());
      later.setDelayed(true);
      admin(t).declareExchange(later);
      admin(t).declareBinding(BindingBuilder.bind(new Queue(q)).to(later).with("k"));
      long began = System.nanoTime();
      t.convertAndSend(later.getName(), "k", "x", m -> { m.getMessageProperties().setDelayLong(700L); return m; });
      t.convertAndSend(later.getName(), "k", "first");
      check("first".equals(t.receiveAndConvert(q)), "first");
      Message found = t.receive(q);
      check((System.nanoTime() - began) / 1_000_000 >= 700 && text(found).equals("x"), found);
      MessageProperties p = found.getMessageProperties();
      check(p.getReceivedDelayLong() == 700L, p.getReceivedDelayLong());
      admin(t).deleteExchange(later.getName());
    });
    use("annotated listeners, with an answer", () -> {
      AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext(Annotated.class);
      opened.add(context);
      RabbitTemplate t = context.getBean(RabbitTemplate.class);
      check("HELLO".equals(t.convertSendAndReceive("spring.annotated", "hello")), "answer");
      t.convertAndSend("spring.annotated.sends", "x");
      check("sent x".equals(t.receiveAndConvert("spring.annotated.out", WAIT_MS)), "sent");
    });
  }

  @Configuration
  @EnableRabbit
  public static class Annotated {
    @Bean ConnectionFactory connections() { return new CachingConnectionFactory("127.0.0.1", port); }
    @Bean RabbitTemplate rabbitTemplate(ConnectionFactory f) {
      RabbitTemplate made = new RabbitTemplate(f);
      made.setReplyTimeout(WAIT_MS);
      return made;
    }
    @Bean RabbitAdmin rabbitAdmin(ConnectionFactory f) { return new RabbitAdmin(f); }
    @Bean Queue asked() { return QueueBuilder.durable("spring.annotated").quorum().build(); }
    @Bean Queue sends() { return QueueBuilder.durable("spring.annotated.sends").build(); }
    @Bean Queue out() { return QueueBuilder.durable("spring.annotated.out").build(); }
    @Bean SimpleRabbitListenerContainerFactory rabbitListenerContainerFactory(ConnectionFactory f) {
      SimpleRabbitListenerContainerFactory made = new SimpleRabbitListenerContainerFactory();
      made.setConnectionFactory(f);
      made.setReceiveTimeout(100L);
      return made;
    }
    @RabbitListener(queues = "spring.annotated") public String upper(String said) { return said.toUpperCase(Locale.ROOT); }
    @RabbitListener(queues = "spring.annotated.sends") @SendTo("spring.annotated.out") public String sent(String said) { return "sent " + said; }
  }

  private interface Makes {
    AbstractMessageListenerContainer of(RabbitTemplate template);
  }

  private static void order(RabbitTemplate t, Makes makes) throws Exception {
    String q = queue(t);
    BlockingQueue<String> heard = new LinkedBlockingQueue<>();
    AbstractMessageListenerContainer c = listens(makes.of(t), m -> heard.add(text(m)), q);
    for (int i = 0; i < 200; i++) t.convertAndSend(q, "" + i);
    for (int i = 0; i < 200; i++) check(next(heard).equals("" + i), i);
    c.stop();
    check(count(t, q) == 0, count(t, q));
  }

  private static void cut(String mark) throws Exception {
    until("the connection in the API", () -> {
      try {
        String all = http("GET", "connections?columns=name,user_provided_name,client_properties").body();
        boolean found = false;
        for (String each : all.split("(?=\\{\"client_properties\")")) {
          if (!each.contains(mark)) continue;
          String name = each.replaceAll("(?s).*\"name\":\"([^\"]* -> [^\"]*)\".*", "$1");
          String path = java.net.URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
          found |= http("DELETE", "connections/" + path).statusCode() == 204;
        }
        return found;
      } catch (Exception error) {
        throw new IllegalStateException(error);
      }
    });
  }

  private static void connections() {
    use("connection: wrong password", () -> {
      CachingConnectionFactory f = factory();
      f.setPassword("wrong");
      raises(AmqpAuthenticationException.class, () -> f.createConnection());
    });
    use("connection: unknown vhost", () -> {
      CachingConnectionFactory f = factory();
      f.setVirtualHost("no-such-vhost");
      raises(AmqpException.class, () -> f.createConnection());
    });
    use("connection: cached connections and channels", () -> {
      CachingConnectionFactory f = factory();
      f.setCacheMode(CachingConnectionFactory.CacheMode.CONNECTION);
      f.setConnectionCacheSize(5);
      RabbitTemplate t = new RabbitTemplate(f);
      String q = queue(t);
      for (int i = 0; i < 50; i++) t.convertAndSend(q, i);
      check(f.getCacheProperties().get("openConnections") != null, f.getCacheProperties());
    });
    use("connection: pooled channels, publisher's own connection", () -> {
      RabbitTemplate t = template();
      t.setUsePublisherConnection(true);
      String q = queue(t);
      t.convertAndSend(q, "x");
      check("x".equals(t.receiveAndConvert(q)), "body");
    });
    use("connection: over Netty, heartbeat 1 s, idle 6 s", () -> {
      com.rabbitmq.client.ConnectionFactory raw = new com.rabbitmq.client.ConnectionFactory();
      raw.setHost("127.0.0.1");
      raw.setPort(port);
      raw.setRequestedHeartbeat(1);
      raw.setAutomaticRecoveryEnabled(false);
      raw.netty();
      CachingConnectionFactory f = new CachingConnectionFactory(raw);
      opened.add(f::destroy);
      BlockingQueue<String> lost = new LinkedBlockingQueue<>();
      f.addConnectionListener(new ConnectionListener() {
        @Override public void onCreate(Connection connection) {}
        @Override public void onShutDown(com.rabbitmq.client.ShutdownSignalException signal) { lost.add(String.valueOf(signal)); }
      });
      f.createConnection();
      Thread.sleep(6000);
      check(lost.isEmpty(), lost);
    });
  }

  public static void main(String[] args) {
    port = Integer.parseInt(args[0]);
    httpPort = Integer.parseInt(args[1]);
    connections();
    admins();
    templates();
    containers();
    System.out.println(failed + " failed");
    System.out.flush();
    Runtime.getRuntime().halt(failed == 0 ? 0 : 1);
  }
}
