// The kafka-go client (segmentio) under test: COMMAND key=value ...
//
// The commands, their arguments and the files that they read and write are the same for every client and are
// described in tests/interop/README.md. It has no idempotent producer: `feed` relies on its retries.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/segmentio/kafka-go"

	"mainstem/interop/common"
)

var errorLog = kafka.LoggerFunc(log.New(os.Stderr, "", log.LstdFlags).Printf)

func main() {
	common.Run(map[string]func(common.Arguments) error{
		"create": create, "produce": produce, "consume": consume, "feed": feed, "member": member, "admin": admin,
		"secure": secure, "sessions": sessions,
	})
}

func newClient(args common.Arguments) *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(args["bootstrap"]), Timeout: 30 * time.Second}
}

func create(args common.Arguments) error {
	ctx, cancel := common.WithDeadline()
	defer cancel()
	request := &kafka.CreateTopicsRequest{}
	for _, topic := range args.Topics() {
		wanted := kafka.TopicConfig{Topic: topic, NumPartitions: args.Number("partitions"), ReplicationFactor: 1}
		request.Topics = append(request.Topics, wanted)
	}
	response, err := newClient(args).CreateTopics(ctx, request)
	if err != nil {
		return err
	}
	return joined(response.Errors)
}

func joined(byTopic map[string]error) error {
	var all error
	for topic, err := range byTopic {
		if err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", topic, err))
		}
	}
	return all
}

// ---------------------------------------------------------------------------------------------- produce

func codec(name string) kafka.Compression {
	codecs := map[string]kafka.Compression{
		"gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
	}
	return codecs[name]
}

// chosen is the partition that the record is to go to.
func chosen(message kafka.Message, _ ...int) int {
	return message.WriterData.(int)
}

func newWriter(
	args common.Arguments, codecName, topic string, balancer kafka.Balancer, acks *common.Acknowledgements,
) *kafka.Writer {
	return &kafka.Writer{
		Addr:         kafka.TCP(args["bootstrap"]),
		Topic:        topic,
		Balancer:     balancer,
		Compression:  codec(codecName),
		RequiredAcks: kafka.RequireAll,
		BatchTimeout: 5 * time.Millisecond,
		BatchSize:    1000,
		// By default it gives up after ten attempts.
		MaxAttempts:     1000,
		WriteBackoffMax: 200 * time.Millisecond,
		Async:           true,
		Completion:      func(messages []kafka.Message, err error) { acks.Note(len(messages), err) },
		ErrorLogger:     errorLog,
	}
}

func produce(args common.Arguments) error {
	return common.Produce(args, func(codecName, topic string, records []common.Record) error {
		var acks common.Acknowledgements
		writer := newWriter(args, codecName, topic, kafka.BalancerFunc(chosen), &acks)
		messages := make([]kafka.Message, len(records))
		for i, r := range records {
			messages[i] = kafka.Message{
				Key: common.BytesOf(r.Key), Value: common.BytesOf(r.Value), WriterData: int(r.Partition),
			}
			for _, h := range r.Headers {
				header := kafka.Header{Key: h.Name, Value: common.BytesOf(h.Value)}
				messages[i].Headers = append(messages[i].Headers, header)
			}
		}
		err := writer.WriteMessages(context.Background(), messages...)
		return acks.Finish(err, writer.Close())
	})
}

func feed(args common.Arguments) error {
	var acks common.Acknowledgements
	writer := newWriter(args, "lz4", args["topic"], &kafka.Hash{}, &acks)
	err := common.FeedLines(func(key, value string) error {
		return writer.WriteMessages(context.Background(), kafka.Message{Key: []byte(key), Value: []byte(value)})
	})
	return acks.Finish(err, writer.Close())
}

// ---------------------------------------------------------------------------------------------- consume

// offsets are the first and the last offset of each partition.
func offsets(ctx context.Context, args common.Arguments, topic string) ([]kafka.PartitionOffsets, error) {
	client := newClient(args)
	metadata, err := client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	var wanted []kafka.OffsetRequest
	for _, partition := range metadata.Topics[0].Partitions {
		wanted = append(wanted, kafka.FirstOffsetOf(partition.ID), kafka.LastOffsetOf(partition.ID))
	}
	request := &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: wanted}}
	response, err := client.ListOffsets(ctx, request)
	if err != nil {
		return nil, err
	}
	return response.Topics[topic], nil
}

func consume(args common.Arguments) error {
	return common.Consume(args, func(topic string, take func(common.Record) error) error {
		ctx, cancel := common.WithDeadline()
		defer cancel()
		found, err := offsets(ctx, args, topic)
		if err != nil {
			return err
		}
		for _, partition := range found {
			if err := readPartition(ctx, args, topic, partition, take); err != nil {
				return fmt.Errorf("partition %d up to %d: %w", partition.Partition, partition.LastOffset, err)
			}
		}
		return nil
	})
}

func newReader(args common.Arguments, topic string, partition int) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{args["bootstrap"]}, Topic: topic, Partition: partition,
		MaxWait: 100 * time.Millisecond, MaxBytes: 1 << 20, ErrorLogger: errorLog,
	})
}

func readPartition(
	ctx context.Context, args common.Arguments, topic string, partition kafka.PartitionOffsets,
	take func(common.Record) error,
) error {
	if partition.LastOffset == 0 {
		return nil
	}
	reader := newReader(args, topic, partition.Partition)
	defer reader.Close()
	for {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			return err
		}
		if err := take(asRecord(message)); err != nil || message.Offset+1 >= partition.LastOffset {
			return err
		}
	}
}

func asRecord(message kafka.Message) common.Record {
	headers := []common.Header{}
	for _, h := range message.Headers {
		headers = append(headers, common.Header{Name: h.Key, Value: common.TextOf(h.Value)})
	}
	return common.Record{
		Partition: int32(message.Partition), Offset: message.Offset,
		Key: common.TextOf(message.Key), Value: common.TextOf(message.Value), Headers: headers,
	}
}

// ----------------------------------------------------------------------------------------------- member

// groupMember takes part in the generations of a group, one after another. What its Reader offers for groups commits
// nothing when partitions are revoked, so this is made of the parts below it.
type groupMember struct {
	args  common.Arguments
	topic string
	notes *common.Notes
}

func member(args common.Arguments) error {
	notes, err := common.NewNotes(args)
	if err != nil {
		return err
	}
	group, err := kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: args["group"], Brokers: []string{args["bootstrap"]}, Topics: []string{args["topic"]},
		GroupBalancers: []kafka.GroupBalancer{kafka.RangeGroupBalancer{}}, StartOffset: kafka.FirstOffset,
		HeartbeatInterval: 500 * time.Millisecond, SessionTimeout: args.Milliseconds("session_ms"), ErrorLogger: errorLog,
	})
	if err != nil {
		return err
	}
	m := &groupMember{args: args, topic: args["topic"], notes: notes}
	for ctx := common.UntilInputEnds(); ctx.Err() == nil; {
		generation, err := group.Next(ctx)
		if err == nil {
			m.take(generation)
		} else if errors.Is(err, kafka.ErrGroupClosed) {
			return err
		}
		// Any other error, as of a coordinator that is not there yet, is one after which the group tries again.
	}
	return errors.Join(group.Close(), notes.Close())
}

// take reads what the member was assigned until the generation ends.
func (m *groupMember) take(generation *kafka.Generation) {
	for _, assigned := range generation.Assignments[m.topic] {
		m.notes.Assigned([]int32{int32(assigned.ID)})
		generation.Start(func(ctx context.Context) {
			if err := m.read(ctx, generation, assigned); err != nil && !errors.Is(err, kafka.ErrGenerationEnded) {
				common.Fail(err)
			}
		})
	}
}

// read ends with its generation, which waits for it; until then commits are taken.
func (m *groupMember) read(
	ctx context.Context, generation *kafka.Generation, assigned kafka.PartitionAssignment,
) error {
	reader := newReader(m.args, m.topic, assigned.ID)
	defer reader.Close()
	if err := reader.SetOffset(assigned.Offset); err != nil {
		return err
	}
	partition := []int32{int32(assigned.ID)}
	for {
		message, err := reader.ReadMessage(ctx)
		if err != nil {
			if commitErr := m.notes.Commit(partition, m.committer(generation)); commitErr != nil {
				return fmt.Errorf("commit on revocation: %w", commitErr)
			}
			m.notes.Gone("revoked", partition)
			return err
		}
		isDue := m.notes.Read(int32(message.Partition), message.Offset, message.Value)
		if reader.Lag() == 0 {
			m.notes.Flush()
		}
		if isDue {
			if err := m.notes.Commit(nil, m.committer(generation)); err != nil {
				return err
			}
		}
	}
}

func (m *groupMember) committer(generation *kafka.Generation) func(map[int32]int64) error {
	return func(positions map[int32]int64) error {
		offsets := map[int]int64{}
		for partition, offset := range positions {
			offsets[int(partition)] = offset
		}
		return generation.CommitOffsets(map[string]map[int]int64{m.topic: offsets})
	}
}
