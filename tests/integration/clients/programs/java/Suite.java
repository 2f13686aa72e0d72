import java.util.*;
import java.util.concurrent.*;
import org.junit.runner.*;
import org.junit.runner.notification.*;

/**
 * Runs test classes of the Java client's own suite and says one line per test. A class that takes
 * too long is given up. Used by suites.py and nothing else.
 *
 *     Suite SECONDS CLASS...
 */
public final class Suite {
  private static final class Told extends RunListener {
    private final Map<Description, Failure> failures = new ConcurrentHashMap<>();
    private final Set<Description> skipped = ConcurrentHashMap.newKeySet();

    private static String name(Description test) {
      return test.getClassName() + "." + test.getMethodName();
    }

    @Override
    public void testFailure(Failure failure) {
      failures.put(failure.getDescription(), failure);
      if (!failure.getDescription().isTest()) testFinished(failure.getDescription());
    }

    @Override
    public void testAssumptionFailure(Failure failure) {
      skipped.add(failure.getDescription());
    }

    @Override
    public void testIgnored(Description test) {
      System.out.println("SKIP " + name(test));
    }

    @Override
    public void testFinished(Description test) {
      Failure failure = failures.get(test);
      if (skipped.contains(test)) {
        System.out.println("SKIP " + name(test));
      } else if (failure == null) {
        System.out.println("PASS " + name(test));
      } else {
        StringBuilder why = new StringBuilder();
        for (Throwable at = failure.getException(); at != null; at = at.getCause()) {
          why.append(' ').append(String.valueOf(at).replace("\n", " "));
        }
        System.out.println("FAIL " + name(test) + why);
      }
      System.out.flush();
    }
  }

  public static void main(String[] args) throws Exception {
    long seconds = Long.parseLong(args[0]);
    for (String name : Arrays.asList(args).subList(1, args.length)) {
      JUnitCore core = new JUnitCore();
      core.addListener(new Told());
      Class<?> type = Class.forName(name);
      Thread thread = new Thread(() -> core.run(type));
      thread.setDaemon(true);
      thread.start();
      thread.join(seconds * 1000);
      if (thread.isAlive()) System.out.println("FAIL " + name + ".(class) given up after " + seconds + " s");
    }
    System.exit(0);
  }
}
