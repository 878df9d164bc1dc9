import java.io.File;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/** Compacts one partition's directory with Kafka's own Cleaner, and says how long that took. */
public class CleanerPeer {
    public static void main(String[] args) throws Exception {
        File dir = new File(args[0]);
        int dedupeBytes = Integer.parseInt(args[1]);
        int ioBytes = Integer.parseInt(args[2]);
        LogConfig config = new LogConfig(Map.of("cleanup.policy", "compact", "segment.bytes", args[3]));
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(dir, config, 0L, Long.MAX_VALUE, scheduler, new BrokerTopicStats(),
            Time.SYSTEM, 60_000, new ProducerStateManagerConfig(86_400_000, false), 600_000,
            new LogDirFailureChannel(1), true, Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        Cleaner cleaner = new Cleaner(0, new SkimpyOffsetMap(dedupeBytes), ioBytes, 1 << 20, 0.9,
            new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM), Time.SYSTEM, partition -> { });
        long bound = log.activeSegment().baseOffset();
        long end = 0;
        long begin = System.nanoTime();
        while (end < bound) {
            end = cleaner.clean(new LogToClean(log, end, bound, false)).getKey();
        }
        double seconds = (System.nanoTime() - begin) / 1e9;
        System.out.println("cleaned " + seconds + " " + log.size());
        System.exit(0);
    }
}
