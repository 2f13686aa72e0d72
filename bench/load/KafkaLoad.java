import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A load program for Apache Kafka with its own client, for what Kafka's own bench programs cannot
 * say: how many records may be without an answer, and many producers with one each.
 *
 * <pre>
 * KafkaLoad create  SERVERS TOPIC                            one partition, three replicas
 * KafkaLoad publish SERVERS TOPIC COUNT IN-FLIGHT PRODUCERS  1 KiB each, acks=all, no linger
 * KafkaLoad consume SERVERS TOPIC COUNT                      offsets committed after every poll
 * KafkaLoad delete  SERVERS TOPIC
 * </pre>
 *
 * A tenth of the records goes before, so that the virtual machine has compiled what it runs. Prints
 * "begin" where the measured part begins and one line of JSON, as amqpload does. Gives up when
 * nothing moves for a minute.
 */
public final class KafkaLoad {
    private static final int SIZE = 1024;
    private static final long STALL_S = 60;

    private static Properties client(String servers) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", servers);
        properties.put("acks", "all");
        // The default waits 5 ms for more records, which is no use to those who await an answer.
        properties.put("linger.ms", "0");
        properties.put("key.serializer", ByteArraySerializer.class.getName());
        properties.put("value.serializer", ByteArraySerializer.class.getName());
        properties.put("key.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("value.deserializer", ByteArrayDeserializer.class.getName());
        properties.put("group.id", "bench");
        properties.put("auto.offset.reset", "earliest");
        properties.put("enable.auto.commit", "false");
        properties.put("max.poll.records", "1000");
        return properties;
    }

    private static double cpuMicros() {
        var system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e3;
    }

    private static void report(int count, long beganNs, double cpuBefore, long[] micros) {
        double seconds = (System.nanoTime() - beganNs) / 1e9;
        StringBuilder line = new StringBuilder();
        line.append(String.format("{\"messages\": %d, \"seconds\": %.4f, \"rate\": %.1f", count, seconds, count / seconds));
        line.append(String.format(", \"client_cpu_us\": %.3f", (cpuMicros() - cpuBefore) / count));
        if (micros.length > 0) {
            Arrays.sort(micros);
            line.append(String.format(", \"p50_us\": %d, \"p99_us\": %d", micros[micros.length / 2], micros[(int) (micros.length * 0.99)]));
        }
        System.out.println(line.append("}"));
        System.out.flush();
    }

    private static void begin() {
        System.out.println("begin");
        System.out.flush();
    }

    /** One producer's share; each answer frees a place of its window. */
    private static void produce(KafkaProducer<byte[], byte[]> producer, String topic, int count, int inFlight, long[] micros, AtomicInteger next)
            throws Exception {
        Semaphore window = new Semaphore(inFlight);
        AtomicReference<Exception> failure = new AtomicReference<>();
        byte[] body = new byte[SIZE];
        for (int i = 0; i < count; i++) {
            if (!window.tryAcquire(STALL_S, TimeUnit.SECONDS)) throw new IllegalStateException("no answer for " + STALL_S + " s");
            if (failure.get() != null) throw failure.get();
            long sent = System.nanoTime();
            producer.send(new ProducerRecord<>(topic, body), (metadata, error) -> {
                if (error != null) failure.set(error);
                micros[next.getAndIncrement()] = (System.nanoTime() - sent) / 1000;
                window.release();
            });
        }
        if (!window.tryAcquire(inFlight, STALL_S, TimeUnit.SECONDS)) throw new IllegalStateException("no answer for " + STALL_S + " s");
        if (failure.get() != null) throw failure.get();
    }

    private static long[] produceAll(List<KafkaProducer<byte[], byte[]>> producers, String topic, int each, int inFlight) throws Exception {
        long[] micros = new long[each * producers.size()];
        AtomicInteger next = new AtomicInteger();
        AtomicReference<Exception> failure = new AtomicReference<>();
        List<Thread> threads = new ArrayList<>();
        for (var producer : producers) {
            Thread thread = new Thread(() -> {
                try {
                    produce(producer, topic, each, inFlight, micros, next);
                } catch (Exception error) {
                    failure.set(error);
                }
            });
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) thread.join();
        if (failure.get() != null) throw failure.get();
        return micros;
    }

    private static void publish(String servers, String topic, int count, int inFlight, int producerCount) throws Exception {
        List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();
        for (int i = 0; i < producerCount; i++) producers.add(new KafkaProducer<>(client(servers)));
        int each = Math.max(count / producerCount, 1);
        produceAll(producers, topic, Math.max(each / 10, 1), inFlight);
        begin();
        double cpu = cpuMicros();
        long began = System.nanoTime();
        long[] micros = produceAll(producers, topic, each, inFlight);
        report(micros.length, began, cpu, micros);
        for (var producer : producers) producer.close(Duration.ofSeconds(10));
    }

    private static void consume(String servers, String topic, int count) {
        try (var consumer = new KafkaConsumer<byte[], byte[]>(client(servers))) {
            consumer.subscribe(List.of(topic));
            int before = take(consumer, Math.max(count / 10, 1));
            begin();
            double cpu = cpuMicros();
            long began = System.nanoTime();
            int taken = take(consumer, count - before);
            report(taken, began, cpu, new long[0]);
        }
    }

    private static int take(KafkaConsumer<byte[], byte[]> consumer, int count) {
        int taken = 0;
        long last = System.nanoTime();
        while (taken < count) {
            int came = consumer.poll(Duration.ofSeconds(1)).count();
            if (came > 0) {
                consumer.commitSync();
                last = System.nanoTime();
            } else if (System.nanoTime() - last > STALL_S * 1_000_000_000L) {
                throw new IllegalStateException("no record for " + STALL_S + " s: " + taken + " of " + count);
            }
            taken += came;
        }
        return taken;
    }

    public static void main(String[] args) throws Exception {
        String verb = args[0], servers = args[1], topic = args[2];
        switch (verb) {
            case "create" -> {
                try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
                    admin.createTopics(List.of(new NewTopic(topic, 1, (short) 3))).all().get(STALL_S, TimeUnit.SECONDS);
                }
                System.out.println("{}");
            }
            case "delete" -> {
                try (Admin admin = Admin.create(Map.of("bootstrap.servers", servers))) {
                    admin.deleteTopics(List.of(topic)).all().get(STALL_S, TimeUnit.SECONDS);
                }
                System.out.println("{}");
            }
            case "publish" -> publish(servers, topic, Integer.parseInt(args[3]), Integer.parseInt(args[4]), Integer.parseInt(args[5]));
            case "consume" -> consume(servers, topic, Integer.parseInt(args[3]));
            default -> throw new IllegalArgumentException("no such verb: " + verb);
        }
        System.exit(0); // threads of the clients do not hold it
    }
}
