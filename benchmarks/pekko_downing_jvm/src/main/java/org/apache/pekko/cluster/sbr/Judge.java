package org.apache.pekko.cluster.sbr;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeSet;
import org.apache.pekko.actor.Address;
import org.apache.pekko.cluster.Member;
import org.apache.pekko.cluster.Member$;
import org.apache.pekko.cluster.Reachability;
import org.apache.pekko.cluster.UniqueAddress;
import org.apache.pekko.util.Version;
import scala.Option;
import scala.concurrent.duration.FiniteDuration;

/**
 * Ask Pekko's strategies about pictures of splits. In the package of the strategies, which are not public.
 *
 * <p>Input, one picture a line: strategy, argument, number of members, viewer, records (observer>subject), members that
 * have seen it; separated by |, lists by commas. Members are Up, numbered by age and address. Output: decision, seconds
 * before the lease is asked for (empty: no lease), the members it downs, the members it downs if the lease is refused.
 */
public final class Judge {
  private static final FiniteDuration LATER = FiniteDuration.fromNanos(2_000_000_000L);

  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      System.out.println(judge(line.split("\\|", -1)));
    }
  }

  private static List<String> words(String text) {
    return text.isEmpty() ? List.of() : List.of(text.split(","));
  }

  private static String judge(String[] in) {
    int count = Integer.parseInt(in[2]);
    List<UniqueAddress> nodes = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      nodes.add(new UniqueAddress(new Address("pekko", "bench", String.format("n%02d", i), 2552), i + 1L));
    }
    UniqueAddress me = nodes.get(Integer.parseInt(in[3]));
    DowningStrategy strategy = strategy(in[0], in[1], me);
    scala.collection.immutable.Set<String> roles = dataCenter();
    Reachability table = Reachability.empty();
    TreeSet<Integer> unreachable = new TreeSet<>();
    for (String record : words(in[4])) {
      String[] ends = record.split(">");
      table = table.unreachable(nodes.get(Integer.parseInt(ends[0])), nodes.get(Integer.parseInt(ends[1])));
      unreachable.add(Integer.parseInt(ends[1]));
    }
    for (int i = 0; i < count; i++) {
      Member member = Member$.MODULE$.apply(nodes.get(i), roles, Version.Zero()).copyUp(i + 1);
      if (unreachable.contains(i) && !nodes.get(i).equals(me)) {
        strategy.addUnreachable(member);
      } else {
        strategy.add(member);
      }
    }
    strategy.setReachability(table);
    scala.collection.immutable.Set<Address> seen = noAddresses();
    for (String node : words(in[5])) {
      seen = add(seen, nodes.get(Integer.parseInt(node)).address());
    }
    strategy.setSeenBy(seen);
    return answer(strategy, nodes);
  }

  private static String answer(DowningStrategy strategy, List<UniqueAddress> nodes) {
    DowningStrategy.Decision decision = strategy.decide();
    String granted;
    try {
      granted = list(strategy.nodesToDown(decision), nodes);
    } catch (IllegalStateException twice) { // as the resolver does
      return "DownAll||" + list(strategy.nodesToDown(DowningStrategy.DownAll$.MODULE$), nodes) + "|";
    }
    if (decision instanceof DowningStrategy.AcquireLeaseDecision lease) {
      String refused = list(strategy.nodesToDown(strategy.reverseDecision(lease)), nodes);
      return decision + "|" + lease.acquireDelay().toSeconds() + "|" + granted + "|" + refused;
    }
    return decision + "||" + granted + "|";
  }

  private static DowningStrategy strategy(String name, String argument, UniqueAddress me) {
    Option<String> any = Option.empty();
    return switch (name) {
      case "keep-majority" -> new KeepMajority("default", any, me);
      case "static-quorum" -> new StaticQuorum("default", Integer.parseInt(argument), any, me);
      case "keep-oldest" -> new KeepOldest("default", Boolean.parseBoolean(argument), any, me);
      case "lease-majority" -> new LeaseMajority("default", any, null, LATER, LATER, me);
      default -> new DownAllNodes("default", me);
    };
  }

  private static String list(scala.collection.immutable.Set<UniqueAddress> down, List<UniqueAddress> nodes) {
    List<String> found = new ArrayList<>();
    for (int i = 0; i < nodes.size(); i++) {
      if (down.contains(nodes.get(i))) {
        found.add(Integer.toString(i));
      }
    }
    return String.join(",", found);
  }

  private static scala.collection.immutable.Set<String> dataCenter() {
    return scala.jdk.javaapi.CollectionConverters.asScala(java.util.Set.of("dc-default")).toSet();
  }

  private static scala.collection.immutable.Set<Address> noAddresses() {
    return scala.jdk.javaapi.CollectionConverters.asScala(java.util.Set.<Address>of()).toSet();
  }

  private static scala.collection.immutable.Set<Address> add(
      scala.collection.immutable.Set<Address> set, Address address) {
    java.util.Set<Address> all = new java.util.HashSet<>(scala.jdk.javaapi.CollectionConverters.asJava(set));
    all.add(address);
    return scala.jdk.javaapi.CollectionConverters.asScala(all).toSet();
  }
}
