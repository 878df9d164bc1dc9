// The franz-go client under test: COMMAND key=value ...
//
// The commands, their arguments and the files that they read and write are the same for every client and are
// described in tests/interop/README.md.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"mainstem/interop/common"
)

func main() {
	common.Run(map[string]func(common.Arguments) error{
		"create": create, "produce": produce, "consume": consume, "feed": feed, "member": member, "admin": admin,
		"transact": transact, "append": appendLines, "secure": secure, "sessions": sessions,
	})
}

func newClient(args common.Arguments, options ...kgo.Opt) (*kgo.Client, error) {
	all := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(args["bootstrap"], ",")...),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
		// A broker that starts may not know its topics at first.
		kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return 200 * time.Millisecond }),
	}
	return kgo.NewClient(append(all, options...)...)
}

func create(args common.Arguments) error {
	client, err := newClient(args)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := common.WithDeadline()
	defer cancel()
	partitions := int32(args.Number("partitions"))
	created, err := kadm.NewClient(client).CreateTopics(ctx, partitions, 1, nil, args.Topics()...)
	if err != nil {
		return err
	}
	return created.Error()
}

// ---------------------------------------------------------------------------------------------- produce

func codec(name string) kgo.CompressionCodec {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	return codecs[name]
}

func produce(args common.Arguments) error {
	return common.Produce(args, func(codecName, topic string, records []common.Record) error {
		return produceAll(args, codecName, topic, records)
	})
}

func produceAll(args common.Arguments, codecName, topic string, records []common.Record) error {
	client, err := newClient(args, kgo.ProducerBatchCompression(codec(codecName)),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := common.WithDeadline()
	defer cancel()
	var first kgo.FirstErrPromise
	for _, r := range records {
		made := &kgo.Record{
			Topic: topic, Partition: r.Partition, Key: common.BytesOf(r.Key), Value: common.BytesOf(r.Value),
		}
		for _, h := range r.Headers {
			made.Headers = append(made.Headers, kgo.RecordHeader{Key: h.Name, Value: common.BytesOf(h.Value)})
		}
		client.Produce(ctx, made, first.Promise())
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return first.Err()
}

// --------------------------------------------------------------------------------------------- transact

func transact(args common.Arguments) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(args["bootstrap"]),
		kgo.TransactionalID(args["id"]), kgo.ConsumerGroup(args["group"]), kgo.ConsumeTopics(args["input"]),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequireStableFetchOffsets(),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, cancel := common.WithDeadline()
	defer cancel()
	behind, err := partitionEnds(ctx, session.Client(), args["input"])
	if err != nil {
		return err
	}
	for chunks := 1; len(behind) > 0; chunks++ {
		fetches := session.PollRecords(ctx, 200)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("not passed on to the ends %v: %w", behind, err)
		}
		if err := session.Begin(); err != nil {
			return err
		}
		var first kgo.FirstErrPromise
		for _, r := range fetches.Records() {
			made := &kgo.Record{Topic: args["output"], Partition: r.Partition, Key: r.Key, Value: r.Value}
			session.Produce(ctx, made, first.Promise())
		}
		// What is aborted is read again.
		committed, err := session.End(ctx, kgo.TransactionEndTry(chunks%3 != 0 && first.Err() == nil))
		if err != nil {
			return err
		}
		if !committed {
			continue
		}
		for _, r := range fetches.Records() {
			if end, is := behind[r.Partition]; is && r.Offset+1 >= end {
				delete(behind, r.Partition)
			}
		}
	}
	return nil
}

// ---------------------------------------------------------------------------------------------- consume

func consume(args common.Arguments) error {
	return common.Consume(args, func(topic string, take func(common.Record) error) error {
		return readTopic(args, topic, take)
	})
}

func readTopic(args common.Arguments, topic string, take func(common.Record) error) error {
	client, err := newClient(args, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := common.WithDeadline()
	defer cancel()
	behind, err := partitionEnds(ctx, client, topic)
	if err != nil {
		return err
	}
	for len(behind) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("not read to the ends %v: %w", behind, err)
		}
		for _, r := range fetches.Records() {
			if err := take(asRecord(r)); err != nil {
				return err
			}
			if r.Offset+1 >= behind[r.Partition] {
				delete(behind, r.Partition)
			}
		}
	}
	return nil
}

func partitionEnds(ctx context.Context, client *kgo.Client, topic string) (map[int32]int64, error) {
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	behind := map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if end.Offset > 0 {
			behind[end.Partition] = end.Offset
		}
	})
	return behind, ends.Error()
}

func asRecord(r *kgo.Record) common.Record {
	headers := []common.Header{}
	for _, h := range r.Headers {
		headers = append(headers, common.Header{Name: h.Key, Value: common.TextOf(h.Value)})
	}
	return common.Record{
		Partition: r.Partition, Offset: r.Offset,
		Key: common.TextOf(r.Key), Value: common.TextOf(r.Value), Headers: headers,
	}
}

// ------------------------------------------------------------------------------------------------- feed

func feed(args common.Arguments) error {
	client, err := newClient(args, kgo.DefaultProduceTopic(args["topic"]), kgo.ProducerLinger(5*time.Millisecond),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	var acknowledged common.Acknowledgements
	err = common.FeedLines(func(key, value string) error {
		client.Produce(ctx, &kgo.Record{Key: []byte(key), Value: []byte(value)}, func(_ *kgo.Record, err error) {
			acknowledged.Note(1, err)
		})
		return nil
	})
	return acknowledged.Finish(err, client.Flush(ctx))
}

// ----------------------------------------------------------------------------------------------- append

func appendLines(args common.Arguments) error {
	out, err := os.Create(args["out"])
	if err != nil {
		return err
	}
	defer out.Close()
	client, err := newClient(args, kgo.DefaultProduceTopic(args["topic"]), kgo.ProducerLinger(time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var partition int32
		var value string
		if _, err := fmt.Sscanf(lines.Text(), "%d %s", &partition, &value); err != nil {
			return err
		}
		// One goroutine finishes the records, so that lines do not mix.
		client.Produce(ctx, &kgo.Record{Partition: partition, Value: []byte(value)}, func(r *kgo.Record, err error) {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				fmt.Fprintf(out, "info %d -1 %s\n", partition, value)
				return
			}
			fmt.Fprintf(out, "ok %d %d %s\n", partition, r.Offset, value)
		})
	}
	return errors.Join(lines.Err(), client.Flush(ctx))
}

// ----------------------------------------------------------------------------------------------- member

type groupMember struct {
	client *kgo.Client
	topic  string
	// The callbacks of the group run beside the loop that polls.
	notes *common.Notes
	// The leader epoch of the last record that was read, by partition (KIP-320).
	epochs sync.Map
}

func member(args common.Arguments) error {
	notes, err := common.NewNotes(args)
	if err != nil {
		return err
	}
	m := &groupMember{topic: args["topic"], notes: notes}
	balancer, ctx := kgo.CooperativeStickyBalancer(), context.Background()
	switch args["rebalance"] {
	case "eager":
		balancer = kgo.RangeBalancer()
	case "consumer":
		// KIP-848 is for those who ask for it, in this way, and not with a cooperative balancer.
		balancer = kgo.StickyBalancer()
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	m.client, err = newClient(args, kgo.WithContext(ctx),
		kgo.ConsumerGroup(args["group"]), kgo.ConsumeTopics(m.topic), kgo.Balancers(balancer),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(args.Milliseconds("session_ms")), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.OnPartitionsAssigned(m.assigned), kgo.OnPartitionsRevoked(m.revoked), kgo.OnPartitionsLost(m.lost))
	if err != nil {
		return err
	}
	if err := m.run(common.UntilInputEnds()); err != nil {
		return err
	}
	m.client.CloseAllowingRebalance()
	return notes.Close()
}

func (m *groupMember) run(ctx context.Context) error {
	for ctx.Err() == nil {
		fetches := m.client.PollRecords(ctx, 200)
		if err := fetches.Err(); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		isDue := false
		for _, r := range fetches.Records() {
			m.epochs.Store(r.Partition, r.LeaderEpoch)
			isDue = m.notes.Read(r.Partition, r.Offset, r.Value)
		}
		m.notes.Flush()
		if isDue {
			if err := m.notes.Commit(nil, m.commit); err != nil {
				return err
			}
		}
		m.client.AllowRebalance()
	}
	return m.notes.Commit(nil, m.commit)
}

func (m *groupMember) commit(positions map[int32]int64) error {
	ctx, cancel := common.WithDeadline()
	defer cancel()
	offsets := map[int32]kgo.EpochOffset{}
	for partition, offset := range positions {
		epoch, _ := m.epochs.Load(partition)
		offsets[partition] = kgo.EpochOffset{Epoch: epoch.(int32), Offset: offset}
	}
	var failure error
	m.client.CommitOffsetsSync(ctx, map[string]map[int32]kgo.EpochOffset{m.topic: offsets},
		func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, response *kmsg.OffsetCommitResponse, err error) {
			failure = err
			if err != nil {
				return
			}
			for _, topic := range response.Topics {
				for _, partition := range topic.Partitions {
					failure = errors.Join(failure, kerr.ErrorForCode(partition.ErrorCode))
				}
			}
		})
	return failure
}

func (m *groupMember) assigned(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
	m.notes.Assigned(assigned[m.topic])
}

func (m *groupMember) revoked(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
	if len(revoked[m.topic]) == 0 {
		return
	}
	if err := m.notes.Commit(revoked[m.topic], m.commit); err != nil {
		common.Fail(fmt.Errorf("commit on revocation: %w", err))
	}
	m.notes.Gone("revoked", revoked[m.topic])
}

func (m *groupMember) lost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	m.notes.Gone("lost", lost[m.topic])
}
