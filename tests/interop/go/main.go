// The franz-go client under test: COMMAND key=value ...
//
// The commands, their arguments and the files that they read and write are the same for every client and are
// described in tests/interop/README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const deadline = 90 * time.Second

type arguments map[string]string

func main() {
	args := arguments{}
	for _, argument := range os.Args[2:] {
		name, value, _ := strings.Cut(argument, "=")
		args[name] = value
	}
	commands := map[string]func(arguments) error{
		"create": create, "produce": produce, "consume": consume, "feed": feed, "member": member, "admin": admin,
	}
	command, known := commands[os.Args[1]]
	if !known {
		fail(fmt.Errorf("no command %s", os.Args[1]))
	}
	if err := command(args); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (args arguments) number(name string) int {
	n, err := strconv.Atoi(args[name])
	if err != nil {
		fail(fmt.Errorf("argument %s: %w", name, err))
	}
	return n
}

func (args arguments) client(options ...kgo.Opt) (*kgo.Client, error) {
	common := []kgo.Opt{
		kgo.SeedBrokers(args["bootstrap"]),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
		// A broker that starts may not know its topics at first.
		kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return 200 * time.Millisecond }),
	}
	return kgo.NewClient(append(common, options...)...)
}

func withDeadline() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), deadline)
}

func create(args arguments) error {
	client, err := args.client()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := withDeadline()
	defer cancel()
	topics := strings.Split(args["topics"], ",")
	created, err := kadm.NewClient(client).CreateTopics(ctx, int32(args.number("partitions")), 1, nil, topics...)
	if err != nil {
		return err
	}
	return created.Error()
}

// ---------------------------------------------------------------------------------------------- produce

type header struct {
	name  string
	value *string
}

func (h *header) UnmarshalJSON(data []byte) error {
	pair := []any{&h.name, &h.value}
	return json.Unmarshal(data, &pair)
}

func (h header) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{h.name, h.value})
}

type record struct {
	Partition int32    `json:"p"`
	Offset    int64    `json:"o"`
	Key       *string  `json:"k"`
	Value     *string  `json:"v"`
	Headers   []header `json:"h"`
}

func bytesOf(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}

func textOf(data []byte) *string {
	if data == nil {
		return nil
	}
	text := string(data)
	return &text
}

func codec(name string) kgo.CompressionCodec {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	return codecs[name]
}

func readRecords(path string) ([]record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var records []record
	for _, line := range strings.Split(strings.TrimSuffix(string(data), "\n"), "\n") {
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		records = append(records, r)
	}
	return records, nil
}

func produce(args arguments) error {
	records, err := readRecords(args["input"])
	if err != nil {
		return err
	}
	for _, job := range strings.Split(args["jobs"], ",") {
		codecName, topic, _ := strings.Cut(job, ":")
		if err := produceAll(args, codecName, topic, records); err != nil {
			return fmt.Errorf("%s: %w", job, err)
		}
	}
	return nil
}

func produceAll(args arguments, codecName, topic string, records []record) error {
	client, err := args.client(kgo.ProducerBatchCompression(codec(codecName)),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := withDeadline()
	defer cancel()
	var first kgo.FirstErrPromise
	for _, r := range records {
		made := &kgo.Record{Topic: topic, Partition: r.Partition, Key: bytesOf(r.Key), Value: bytesOf(r.Value)}
		for _, h := range r.Headers {
			made.Headers = append(made.Headers, kgo.RecordHeader{Key: h.name, Value: bytesOf(h.value)})
		}
		client.Produce(ctx, made, first.Promise())
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return first.Err()
}

// ---------------------------------------------------------------------------------------------- consume

func consume(args arguments) error {
	for _, topic := range strings.Split(args["topics"], ",") {
		if err := consumeTopic(args, topic); err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
	}
	return nil
}

func consumeTopic(args arguments, topic string) error {
	client, err := args.client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := withDeadline()
	defer cancel()
	behind, err := partitionEnds(ctx, client, topic)
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(args["out"], topic+".jsonl"))
	if err != nil {
		return err
	}
	defer file.Close()
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for len(behind) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("not read to the ends %v: %w", behind, err)
		}
		for _, r := range fetches.Records() {
			if err := encoder.Encode(asJSON(r)); err != nil {
				return err
			}
			if r.Offset+1 >= behind[r.Partition] {
				delete(behind, r.Partition)
			}
		}
	}
	return out.Flush()
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

func asJSON(r *kgo.Record) record {
	headers := []header{}
	for _, h := range r.Headers {
		headers = append(headers, header{h.Key, textOf(h.Value)})
	}
	return record{r.Partition, r.Offset, textOf(r.Key), textOf(r.Value), headers}
}

// ------------------------------------------------------------------------------------------------- feed

func feed(args arguments) error {
	client, err := args.client(kgo.DefaultProduceTopic(args["topic"]), kgo.ProducerLinger(5*time.Millisecond),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	var mutex sync.Mutex
	var firstErr error
	acknowledged := 0
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), "\t")
		client.Produce(ctx, &kgo.Record{Key: []byte(key), Value: []byte(value)}, func(_ *kgo.Record, err error) {
			mutex.Lock()
			defer mutex.Unlock()
			if err == nil {
				acknowledged++
			} else if firstErr == nil {
				firstErr = err
			}
		})
	}
	if err := errors.Join(lines.Err(), client.Flush(ctx), firstErr); err != nil {
		return err
	}
	fmt.Println("acknowledged", acknowledged)
	return nil
}

// ----------------------------------------------------------------------------------------------- member

// groupMember writes down what it read and what it committed, in that order.
type groupMember struct {
	client *kgo.Client
	topic  string
	// The callbacks of the group run beside the loop that polls.
	mutex     sync.Mutex
	out       *bufio.Writer
	positions map[int32]kgo.EpochOffset
}

func member(args arguments) error {
	file, err := os.Create(args["out"])
	if err != nil {
		return err
	}
	defer file.Close()
	m := &groupMember{topic: args["topic"], out: bufio.NewWriter(file), positions: map[int32]kgo.EpochOffset{}}
	balancer := kgo.CooperativeStickyBalancer()
	if args["rebalance"] == "eager" {
		balancer = kgo.RangeBalancer()
	}
	m.client, err = args.client(
		kgo.ConsumerGroup(args["group"]), kgo.ConsumeTopics(m.topic), kgo.Balancers(balancer),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.OnPartitionsAssigned(m.note("assigned")), kgo.OnPartitionsRevoked(m.revoked),
		kgo.OnPartitionsLost(m.note("lost")))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := m.run(ctx, args.number("commit_every")); err != nil {
		return err
	}
	m.client.CloseAllowingRebalance()
	return m.out.Flush()
}

func (m *groupMember) run(ctx context.Context, commitEvery int) error {
	uncommitted := 0
	for ctx.Err() == nil {
		fetches := m.client.PollRecords(ctx, 200)
		if err := fetches.Err(); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		records := fetches.Records()
		m.read(records)
		uncommitted += len(records)
		if uncommitted >= commitEvery {
			if err := m.commit(nil); err != nil {
				return err
			}
			uncommitted = 0
		}
		m.client.AllowRebalance()
	}
	return m.commit(nil)
}

func (m *groupMember) read(records []*kgo.Record) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, r := range records {
		fmt.Fprintf(m.out, "r %d %d %s\n", r.Partition, r.Offset, r.Value)
		m.positions[r.Partition] = kgo.EpochOffset{Epoch: r.LeaderEpoch, Offset: r.Offset + 1}
	}
	m.out.Flush()
}

// commit commits what was read of the given partitions, or of all where none are given.
func (m *groupMember) commit(partitions []int32) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if partitions == nil {
		for partition := range m.positions {
			partitions = append(partitions, partition)
		}
	}
	offsets := map[int32]kgo.EpochOffset{}
	for _, partition := range partitions {
		if position, read := m.positions[partition]; read {
			offsets[partition] = position
		}
	}
	if len(offsets) == 0 {
		return nil
	}
	ctx, cancel := withDeadline()
	defer cancel()
	if err := m.commitSync(ctx, offsets); err != nil {
		return err
	}
	for partition, position := range offsets {
		fmt.Fprintf(m.out, "c %d %d\n", partition, position.Offset)
	}
	return m.out.Flush()
}

func (m *groupMember) commitSync(ctx context.Context, offsets map[int32]kgo.EpochOffset) error {
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

func (m *groupMember) revoked(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
	if len(revoked[m.topic]) == 0 {
		return
	}
	if err := m.commit(revoked[m.topic]); err != nil {
		fail(fmt.Errorf("commit on revocation: %w", err))
	}
	m.forget(revoked[m.topic])
	m.write("revoked", revoked[m.topic])
}

// note makes a callback that writes down what happened to partitions.
func (m *groupMember) note(what string) func(context.Context, *kgo.Client, map[string][]int32) {
	return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		if what == "lost" {
			m.forget(partitions[m.topic])
		}
		m.write(what, partitions[m.topic])
	}
}

func (m *groupMember) forget(partitions []int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, partition := range partitions {
		delete(m.positions, partition)
	}
}

func (m *groupMember) write(what string, partitions []int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, partition := range partitions {
		fmt.Fprintf(m.out, "%s %d\n", what, partition)
	}
	m.out.Flush()
}
