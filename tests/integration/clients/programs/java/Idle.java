import com.rabbitmq.client.*;
import java.util.*;
import java.util.concurrent.*;

/**
 * Connections of RabbitMQ's Java client that carry nothing, over one of its transports: netty, io.
 * Used by test_idle_connections.py and nothing else. Ends with status 0 when none was lost.
 */
public final class Idle {
  private static final int INTERVAL_S = 2;
  private static final int CONNECTIONS = 12;

  public static void main(String[] args) throws Exception {
    ConnectionFactory factory = new ConnectionFactory();
    factory.setHost("127.0.0.1");
    factory.setPort(Integer.parseInt(args[1]));
    factory.setRequestedHeartbeat(INTERVAL_S);
    factory.setAutomaticRecoveryEnabled(false);
    if (args[0].equals("netty")) factory.netty();
    Queue<String> lost = new ConcurrentLinkedQueue<>();
    List<Connection> connections = new ArrayList<>();
    for (int i = 0; i < CONNECTIONS; i++) {
      Connection connection = factory.newConnection();
      connection.addShutdownListener(cause -> lost.add(cause + " " + cause.getCause()));
      connections.add(connection);
    }
    Thread.sleep(4 * INTERVAL_S * 1000);
    if (!lost.isEmpty()) throw new AssertionError(lost.size() + " lost: " + lost.peek());
    for (Connection connection : connections) connection.createChannel().close();
    System.out.println("done");
    System.exit(0);
  }
}
