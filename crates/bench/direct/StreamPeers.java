import akka.Done;
import akka.actor.typed.ActorRef;
import akka.actor.typed.ActorSystem;
import akka.actor.typed.Behavior;
import akka.actor.typed.Props;
import akka.actor.typed.SpawnProtocol;
import akka.actor.typed.javadsl.AskPattern;
import akka.grpc.GrpcClientSettings;
import akka.http.javadsl.Http;
import akka.persistence.query.Offset;
import akka.persistence.query.typed.EventEnvelope;
import akka.persistence.typed.PersistenceId;
import akka.persistence.typed.javadsl.CommandHandler;
import akka.persistence.typed.javadsl.EventHandler;
import akka.persistence.typed.javadsl.EventSourcedBehavior;
import akka.projection.ProjectionBehavior;
import akka.projection.ProjectionId;
import akka.projection.eventsourced.javadsl.EventSourcedProvider;
import akka.projection.grpc.consumer.GrpcQuerySettings;
import akka.projection.grpc.consumer.javadsl.GrpcReadJournal;
import akka.projection.grpc.producer.EventProducerSettings;
import akka.projection.grpc.producer.javadsl.EventProducer;
import akka.projection.grpc.producer.javadsl.EventProducerSource;
import akka.projection.grpc.producer.javadsl.Transformation;
import akka.projection.javadsl.Handler;
import akka.projection.javadsl.SourceProvider;
import akka.projection.r2dbc.javadsl.R2dbcProjection;
import com.google.protobuf.ByteString;
import com.google.protobuf.BytesValue;
import com.google.protobuf.WrappersProto;
import com.typesafe.config.Config;
import com.typesafe.config.ConfigFactory;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;

/**
 * Services that stream events by Akka Projection gRPC: what {@code stream_lag} of crates/flow is, with the same commands and
 * answers, its journal and its consumers' offsets in PostgreSQL.
 *
 * <p>{@code StreamPeers publish DATABASE_PORT PORT} and {@code StreamPeers consume DATABASE_PORT PORT CONSUMERS}.
 */
public final class StreamPeers {
  static final int EVENT_BYTES = 56;
  static final int ENTITIES = 32;
  static final int EVENTS_OF_CYCLE = 7;

  public static void main(String[] arguments) throws Exception {
    int port = Integer.parseInt(arguments[2]);
    Config config = ConfigFactory.parseString(String.join("\n",
        "akka.loglevel = ERROR",
        "akka.stdout-loglevel = ERROR",
        "akka.log-dead-letters = off",
        // The registry has akka-discovery 2.7.0 and no 2.8.1, which finds nothing here but a fixed address.
        "akka.fail-mixed-versions = off",
        "akka.http.server.enable-http2 = on",
        "akka.http.server.preview.enable-http2 = on",
        "akka.persistence.journal.plugin = \"akka.persistence.r2dbc.journal\"",
        "akka.persistence.snapshot-store.plugin = \"akka.persistence.r2dbc.snapshot\"",
        "akka.projection.grpc.producer.query-plugin-id = \"akka.persistence.r2dbc.query\"",
        // Above its default of 400 events/s it polls every 3 s.
        "akka.persistence.r2dbc.journal.publish-events-dynamic.throughput-threshold = 1000000",
        "akka.persistence.r2dbc.connection-factory {",
        "  driver = postgres, host = \"127.0.0.1\", port = " + arguments[1],
        "  database = postgres, user = postgres, password = postgres",
        "}")).withFallback(ConfigFactory.load());
    ActorSystem<SpawnProtocol.Command> system = ActorSystem.create(SpawnProtocol.create(), "streams", config);
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    if (arguments[0].equals("publish")) {
      new Publisher(system, port).serve(commands);
    } else {
      new Consumers(system, port, Integer.parseInt(arguments[3])).serve(commands);
    }
    system.terminate();
    system.getWhenTerminated().toCompletableFuture().get(20, TimeUnit.SECONDS);
    System.exit(0);
  }

  static long nowNs() {
    Instant now = Instant.now();
    return now.getEpochSecond() * 1_000_000_000L + now.getNano();
  }

  static void say(String format, Object... figures) {
    System.out.println(String.format(Locale.ROOT, format, figures));
    System.out.flush();
  }

  /** Nanoseconds, kept as they are. */
  static final class Times {
    private long[] values = new long[1 << 16];
    private int count;

    synchronized void add(long ns) {
      if (count == values.length) {
        values = Arrays.copyOf(values, count * 2);
      }
      values[count++] = ns;
    }

    synchronized void reset() {
      count = 0;
    }

    synchronized double[] ms(double... quantiles) {
      Arrays.sort(values, 0, count);
      double[] answers = new double[quantiles.length];
      for (int at = 0; at < quantiles.length; at++) {
        int place = Math.max(0, (int) Math.ceil(quantiles[at] * count) - 1);
        answers[at] = count == 0 ? 0 : values[place] / 1e6;
      }
      return answers;
    }
  }

  /** What an entity is asked to keep. */
  static final class Append {
    final BytesValue event;
    final ActorRef<Done> replyTo;

    Append(BytesValue event, ActorRef<Done> replyTo) {
      this.event = event;
      this.replyTo = replyTo;
    }
  }

  static final class Entity extends EventSourcedBehavior<Append, BytesValue, Integer> {
    Entity(int number) {
      super(PersistenceId.of("Entity", "entity-" + number));
    }

    @Override
    public Integer emptyState() {
      return 0;
    }

    @Override
    public CommandHandler<Append, BytesValue, Integer> commandHandler() {
      return (state, command) ->
          Effect().persist(command.event).thenRun(() -> command.replyTo.tell(Done.getInstance()));
    }

    @Override
    public EventHandler<Integer, BytesValue> eventHandler() {
      return (state, event) -> state + 1;
    }
  }

  static <T> ActorRef<T> spawn(ActorSystem<SpawnProtocol.Command> system, Behavior<T> behavior, String name) throws Exception {
    CompletionStage<ActorRef<T>> spawned = AskPattern.ask(system,
        replyTo -> new SpawnProtocol.Spawn<>(behavior, name, Props.empty(), replyTo), Duration.ofSeconds(10), system.scheduler());
    return spawned.toCompletableFuture().get();
  }

  static final class Publisher {
    private final ActorSystem<SpawnProtocol.Command> system;
    private final List<ActorRef<Append>> entities = new ArrayList<>();
    private final AtomicInteger[] numbers = new AtomicInteger[ENTITIES];
    private final Times took = new Times();

    Publisher(ActorSystem<SpawnProtocol.Command> system, int port) throws Exception {
      this.system = system;
      for (int entity = 0; entity < ENTITIES; entity++) {
        entities.add(spawn(system, new Entity(entity), "entity-" + entity));
        numbers[entity] = new AtomicInteger();
      }
      EventProducerSource source =
          new EventProducerSource("Entity", "events", Transformation.identity(), EventProducerSettings.apply(system));
      Http.get(system).newServerAt("127.0.0.1", port).bind(EventProducer.grpcServiceHandler(system, source))
          .toCompletableFuture().get(30, TimeUnit.SECONDS);
    }

    void serve(BufferedReader commands) throws Exception {
      say("{\"ready\": 1}");
      for (String line = commands.readLine(); line != null; line = commands.readLine()) {
        String[] words = line.trim().split(" ");
        took.reset();
        long began = System.nanoTime();
        long events;
        if (words[0].equals("cycles")) {
          events = cycles(Long.parseLong(words[1]), Long.parseLong(words[2]), Long.parseLong(words[3]));
        } else if (words[0].equals("rate")) {
          events = rate(Long.parseLong(words[1]), Long.parseLong(words[2]));
        } else {
          throw new IllegalArgumentException(line);
        }
        double[] ms = took.ms(0.5, 0.99, 0.999);
        say("{\"events\": %d, \"seconds\": %f, \"append_p50_ms\": %f, \"append_p99_ms\": %f, \"append_p999_ms\": %f}",
            events, (System.nanoTime() - began) / 1e9, ms[0], ms[1], ms[2]);
      }
    }

    private CompletionStage<Done> append(int entity, long sentNs) {
      int number = numbers[entity].getAndIncrement();
      byte[] bytes = new byte[EVENT_BYTES];
      Arrays.fill(bytes, (byte) number);
      ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).putLong(sentNs).putInt(entity).putInt(number);
      BytesValue event = BytesValue.newBuilder().setValue(ByteString.copyFrom(bytes)).build();
      return AskPattern.<Append, Done>ask(entities.get(entity), replyTo -> new Append(event, replyTo), Duration.ofSeconds(300), system.scheduler())
          .thenApply(done -> {
            took.add(nowNs() - sentNs);
            return done;
          });
    }

    private CompletionStage<Done> appendInTurn(int entity, int events) {
      CompletionStage<Done> done = append(entity, nowNs());
      return events == 1 ? done : done.thenCompose(one -> appendInTurn(entity, events - 1));
    }

    private long cycles(long seconds, long cycleMs, long pauseMs) throws Exception {
      long end = System.nanoTime() + seconds * 1_000_000_000L;
      long events = 0;
      while (System.nanoTime() < end) {
        long began = System.nanoTime();
        CompletableFuture<?>[] appending = new CompletableFuture<?>[ENTITIES];
        for (int entity = 0; entity < ENTITIES; entity++) {
          appending[entity] = appendInTurn(entity, EVENTS_OF_CYCLE).toCompletableFuture();
        }
        CompletableFuture.allOf(appending).get(120, TimeUnit.SECONDS);
        events += ENTITIES * EVENTS_OF_CYCLE;
        sleepUntil(Math.max(began + cycleMs * 1_000_000, System.nanoTime() + pauseMs * 1_000_000));
      }
      return events;
    }

    private long rate(long rate, long seconds) throws Exception {
      long begin = System.nanoTime();
      long beginNs = nowNs();
      List<CompletableFuture<Done>> appending = new ArrayList<>();
      for (long number = 0; number < rate * seconds; number++) {
        long after = number * 1_000_000_000L / rate;
        sleepUntil(begin + after);
        appending.add(append((int) (number % ENTITIES), beginNs + after).toCompletableFuture());
      }
      CompletableFuture.allOf(appending.toArray(new CompletableFuture<?>[0])).get(300, TimeUnit.SECONDS);
      return rate * seconds;
    }

    private static void sleepUntil(long nano) {
      for (long left = nano - System.nanoTime(); left > 0; left = nano - System.nanoTime()) {
        LockSupport.parkNanos(left);
      }
    }
  }

  /** What came to a consumer, or what is wrong with it. */
  static final class Seen extends Handler<EventEnvelope<BytesValue>> {
    private final Consumers all;
    private final int[] numbers = new int[ENTITIES];

    Seen(Consumers all) {
      this.all = all;
    }

    @Override
    public CompletionStage<Done> process(EventEnvelope<BytesValue> envelope) {
      long now = nowNs();
      byte[] bytes = envelope.event().getValue().toByteArray();
      ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
      long sentNs = buffer.getLong();
      int entity = buffer.getInt();
      int number = buffer.getInt();
      boolean isRight = bytes.length == EVENT_BYTES && number == numbers[entity];
      numbers[entity] = number + 1;
      for (int at = 16; at < EVENT_BYTES; at++) {
        isRight &= bytes[at] == (byte) number;
      }
      all.take(now, now - sentNs, isRight);
      return CompletableFuture.completedFuture(Done.getInstance());
    }
  }

  static final class Consumers {
    private final Times lags = new Times();
    private long events;
    private long faults;
    private long firstNs;
    private long lastNs;

    Consumers(ActorSystem<SpawnProtocol.Command> system, int port, int consumers) throws Exception {
      for (int number = 0; number < consumers; number++) {
        GrpcReadJournal journal = GrpcReadJournal.create(system, GrpcQuerySettings.create("events"),
            GrpcClientSettings.connectToServiceAt("127.0.0.1", port, system).withTls(false),
            List.of(WrappersProto.getDescriptor()));
        SourceProvider<Offset, EventEnvelope<BytesValue>> provider =
            EventSourcedProvider.eventsBySlices(system, journal, journal.streamId(), 0, 1023);
        String name = "consumer-" + ProcessHandle.current().pid() + "-" + number;
        // One handler for all restarts of the projection, so that what is repeated is noticed.
        Seen seen = new Seen(this);
        spawn(system, ProjectionBehavior.create(R2dbcProjection.atLeastOnceAsync(
            ProjectionId.of(name, "0-1023"), Optional.empty(), provider, () -> seen, system)), name);
      }
    }

    synchronized void take(long now, long lag, boolean isRight) {
      if (events++ == 0) {
        firstNs = now;
      }
      lastNs = now;
      faults += isRight ? 0 : 1;
      lags.add(lag);
    }

    void serve(BufferedReader commands) throws Exception {
      say("{\"ready\": 1}");
      for (String line = commands.readLine(); line != null; line = commands.readLine()) {
        synchronized (this) {
          if (line.equals("reset")) {
            lags.reset();
            events = firstNs = lastNs = 0;
          }
          double[] ms = lags.ms(0.5, 0.99, 0.999, 1);
          say("{\"events\": %d, \"faults\": %d, \"first_ms\": %f, \"last_ms\": %f, \"lag_p50_ms\": %f, \"lag_p99_ms\": %f, "
              + "\"lag_p999_ms\": %f, \"lag_max_ms\": %f}",
              events, faults, firstNs / 1e6, lastNs / 1e6, ms[0], ms[1], ms[2], ms[3]);
        }
      }
    }
  }
}
