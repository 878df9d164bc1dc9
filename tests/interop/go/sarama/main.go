// The sarama client under test: COMMAND key=value ...
//
// The commands, their arguments and the files that they read and write are the same for every client and are
// described in tests/interop/README.md.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"mainstem/interop/common"
)

func main() {
	sarama.Logger = log.New(os.Stderr, "", log.LstdFlags)
	common.Run(map[string]func(common.Arguments) error{
		"create": create, "produce": produce, "consume": consume, "feed": feed, "member": member, "admin": admin,
		"transact": transact, "secure": secure, "sessions": sessions,
	})
}

func addresses(args common.Arguments) []string {
	return []string{args["bootstrap"]}
}

func newConfig() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_3_0_0
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	return config
}

func create(args common.Arguments) error {
	admin, err := sarama.NewClusterAdmin(addresses(args), newConfig())
	if err != nil {
		return err
	}
	defer admin.Close()
	detail := &sarama.TopicDetail{NumPartitions: int32(args.Number("partitions")), ReplicationFactor: 1}
	for _, topic := range args.Topics() {
		if err := admin.CreateTopic(topic, detail, false); err != nil {
			return fmt.Errorf("%s: %w", topic, err)
		}
	}
	return nil
}

// ---------------------------------------------------------------------------------------------- produce

func codec(name string) sarama.CompressionCodec {
	codecs := map[string]sarama.CompressionCodec{
		"none": sarama.CompressionNone, "gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy,
		"lz4": sarama.CompressionLZ4, "zstd": sarama.CompressionZSTD,
	}
	return codecs[name]
}

// --------------------------------------------------------------------------------------------- transact

func transact(args common.Arguments) error {
	config := newConfig()
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Transaction.ID = args["id"]
	config.Net.MaxOpenRequests = 1
	client, err := sarama.NewClient(addresses(args), config)
	if err != nil {
		return err
	}
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return err
	}
	defer producer.Close()
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	defer consumer.Close()
	partitions, err := client.Partitions(args["input"])
	if err != nil {
		return err
	}
	chunks := 0
	for _, partition := range partitions {
		if err := transactPartition(args, client, producer, consumer, partition, &chunks); err != nil {
			return err
		}
	}
	return nil
}

func transactPartition(
	args common.Arguments, client sarama.Client, producer sarama.SyncProducer, consumer sarama.Consumer,
	partition int32, chunks *int,
) error {
	end, err := client.GetOffset(args["input"], partition, sarama.OffsetNewest)
	if err != nil {
		return err
	}
	reader, err := consumer.ConsumePartition(args["input"], partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	defer reader.Close()
	var chunk []*sarama.ProducerMessage
	for next := int64(0); next < end; {
		message := <-reader.Messages()
		next = message.Offset + 1
		chunk = append(chunk, &sarama.ProducerMessage{
			Topic: args["output"], Partition: partition,
			Key: raw(message.Key), Value: raw(message.Value),
		})
		if len(chunk) < 200 && next < end {
			continue
		}
		*chunks++
		ends := []bool{true}
		if *chunks%3 == 0 {
			ends = []bool{false, true}
		}
		for _, commit := range ends {
			if err := passOn(args, producer, chunk, partition, next, commit); err != nil {
				return err
			}
		}
		chunk = nil
	}
	return nil
}

// passOn writes a chunk and commits how far it goes, in one transaction.
func passOn(
	args common.Arguments, producer sarama.SyncProducer, chunk []*sarama.ProducerMessage, partition int32,
	next int64, commit bool,
) error {
	if err := producer.BeginTxn(); err != nil {
		return err
	}
	again := make([]*sarama.ProducerMessage, len(chunk))
	for i, m := range chunk {
		again[i] = &sarama.ProducerMessage{Topic: m.Topic, Partition: m.Partition, Key: m.Key, Value: m.Value}
	}
	if err := producer.SendMessages(again); err != nil {
		return err
	}
	offsets := map[string][]*sarama.PartitionOffsetMetadata{
		args["input"]: {{Partition: partition, Offset: next}},
	}
	if err := producer.AddOffsetsToTxn(offsets, args["group"]); err != nil {
		return err
	}
	if commit {
		return producer.CommitTxn()
	}
	return producer.AbortTxn()
}

// raw is what was read, to be written as it is.
func raw(data []byte) sarama.Encoder {
	if data == nil {
		return nil
	}
	return sarama.ByteEncoder(data)
}

// newProducer is an idempotent producer, and what becomes of the records that it is given.
func newProducer(
	args common.Arguments, codecName string, partitioner sarama.PartitionerConstructor,
) (sarama.AsyncProducer, *outcomes, error) {
	config := newConfig()
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Compression = codec(codecName)
	config.Producer.Partitioner = partitioner
	config.Producer.Flush.Frequency = 5 * time.Millisecond
	config.Producer.Return.Successes = true
	// By default it gives up on a broker that is away for longer than a third of a second.
	config.Producer.Retry.Max = 1000
	config.Producer.Retry.Backoff = 100 * time.Millisecond
	config.Metadata.Retry.Max = 1000
	config.Metadata.Retry.Backoff = 100 * time.Millisecond
	producer, err := sarama.NewAsyncProducer(addresses(args), config)
	if err != nil {
		return nil, nil, err
	}
	return producer, watch(producer), nil
}

// outcomes takes the acknowledgements and errors of a producer until it is closed.
type outcomes struct {
	common.Acknowledgements
	both sync.WaitGroup
}

func watch(producer sarama.AsyncProducer) *outcomes {
	o := &outcomes{}
	o.both.Add(2)
	go func() {
		defer o.both.Done()
		for range producer.Successes() {
			o.Note(1, nil)
		}
	}()
	go func() {
		defer o.both.Done()
		for err := range producer.Errors() {
			o.Note(1, err)
		}
	}()
	return o
}

// finish waits for every acknowledgement.
func (o *outcomes) finish(producer sarama.AsyncProducer, err error) error {
	producer.AsyncClose()
	o.both.Wait()
	return o.Finish(err)
}

func encoder(text *string) sarama.Encoder {
	if text == nil {
		return nil
	}
	return sarama.StringEncoder(*text)
}

func produce(args common.Arguments) error {
	return common.Produce(args, func(codecName, topic string, records []common.Record) error {
		producer, outcomes, err := newProducer(args, codecName, sarama.NewManualPartitioner)
		if err != nil {
			return err
		}
		for _, r := range records {
			message := &sarama.ProducerMessage{
				Topic: topic, Partition: r.Partition, Key: encoder(r.Key), Value: encoder(r.Value),
			}
			for _, h := range r.Headers {
				header := sarama.RecordHeader{Key: []byte(h.Name), Value: common.BytesOf(h.Value)}
				message.Headers = append(message.Headers, header)
			}
			producer.Input() <- message
		}
		return outcomes.finish(producer, nil)
	})
}

func feed(args common.Arguments) error {
	producer, outcomes, err := newProducer(args, "lz4", sarama.NewHashPartitioner)
	if err != nil {
		return err
	}
	err = common.FeedLines(func(key, value string) error {
		producer.Input() <- &sarama.ProducerMessage{
			Topic: args["topic"], Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(value),
		}
		return nil
	})
	return outcomes.finish(producer, err)
}

// ---------------------------------------------------------------------------------------------- consume

func consume(args common.Arguments) error {
	client, err := sarama.NewClient(addresses(args), newConfig())
	if err != nil {
		return err
	}
	defer client.Close()
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	defer consumer.Close()
	return common.Consume(args, func(topic string, take func(common.Record) error) error {
		partitions, err := client.Partitions(topic)
		if err != nil {
			return err
		}
		for _, partition := range partitions {
			if err := readPartition(client, consumer, topic, partition, take); err != nil {
				return fmt.Errorf("partition %d: %w", partition, err)
			}
		}
		return nil
	})
}

func readPartition(
	client sarama.Client, consumer sarama.Consumer, topic string, partition int32, take func(common.Record) error,
) error {
	end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
	if err != nil || end == 0 {
		return err
	}
	reader, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	// To wait for it would take a fetch's time.
	defer reader.AsyncClose()
	deadline := time.After(common.Deadline)
	for {
		select {
		case message := <-reader.Messages():
			if err := take(asRecord(message)); err != nil || message.Offset+1 >= end {
				return err
			}
		case <-deadline:
			return fmt.Errorf("not read up to %d", end)
		}
	}
}

func asRecord(message *sarama.ConsumerMessage) common.Record {
	headers := []common.Header{}
	for _, h := range message.Headers {
		headers = append(headers, common.Header{Name: string(h.Key), Value: common.TextOf(h.Value)})
	}
	return common.Record{
		Partition: message.Partition, Offset: message.Offset,
		Key: common.TextOf(message.Key), Value: common.TextOf(message.Value), Headers: headers,
	}
}

// ----------------------------------------------------------------------------------------------- member

// groupMember handles the sessions of a group: one from each rebalance to the next.
type groupMember struct {
	topic string
	notes *common.Notes
}

func member(args common.Arguments) error {
	notes, err := common.NewNotes(args)
	if err != nil {
		return err
	}
	config := newConfig()
	config.Consumer.Return.Errors = true
	config.Consumer.Group.Session.Timeout = args.Milliseconds("session_ms")
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyRange()}
	group, err := sarama.NewConsumerGroup(addresses(args), args["group"], config)
	if err != nil {
		return err
	}
	go func() {
		for err := range group.Errors() {
			log.Print(err)
		}
	}()
	m := &groupMember{topic: args["topic"], notes: notes}
	for ctx := common.UntilInputEnds(); ctx.Err() == nil; {
		if err := group.Consume(ctx, []string{m.topic}, m); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return errors.Join(group.Close(), notes.Close())
}

func (m *groupMember) Setup(session sarama.ConsumerGroupSession) error {
	m.notes.Assigned(session.Claims()[m.topic])
	return nil
}

// Cleanup runs when all claims have come to their end and before the member joins again.
func (m *groupMember) Cleanup(session sarama.ConsumerGroupSession) error {
	err := m.notes.Commit(nil, m.committer(session))
	m.notes.Gone("revoked", session.Claims()[m.topic])
	return err
}

func (m *groupMember) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		isDue := m.notes.Read(message.Partition, message.Offset, message.Value)
		if len(claim.Messages()) == 0 {
			m.notes.Flush()
		}
		if isDue {
			if err := m.notes.Commit(nil, m.committer(session)); err != nil {
				return err
			}
		}
	}
	return nil
}

// committer commits at once. What fails comes to the group's channel of errors.
func (m *groupMember) committer(session sarama.ConsumerGroupSession) func(map[int32]int64) error {
	return func(offsets map[int32]int64) error {
		for partition, offset := range offsets {
			session.MarkOffset(m.topic, partition, offset, "")
		}
		session.Commit()
		return nil
	}
}

var _ sarama.ConsumerGroupHandler = (*groupMember)(nil)
