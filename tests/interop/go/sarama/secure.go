package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"

	"mainstem/interop/common"
)

const timeout = 30 * time.Second

func secure(args common.Arguments) error {
	return common.Secure(args, "sarama", common.Steps{Write: writeSecurely, Read: readSecurely})
}

// login is the exchange that sarama leaves to its user.
type login struct {
	generator    scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

func (l *login) Begin(user, password, authorization string) error {
	client, err := l.generator.NewClient(user, password, authorization)
	if err == nil {
		l.conversation = client.NewConversation()
	}
	return err
}

func (l *login) Step(challenge string) (string, error) { return l.conversation.Step(challenge) }

func (l *login) Done() bool { return l.conversation.Done() }

func securedConfig(way common.Way) *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Return.Errors = true
	// A refusal is final; by default it asks again and waits in between.
	config.Metadata.Retry.Max = 0
	config.Consumer.Group.Rebalance.Retry.Max = 0
	config.Net.TLS.Enable = true
	config.Net.TLS.Config = way.TLS()
	if way.Mechanism != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(way.Mechanism)
		config.Net.SASL.User = way.User
		config.Net.SASL.Password = way.Password
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			return &login{generator: scram.HashGeneratorFcn(way.Hash())}
		}
	}
	return config
}

// Its errors are sentences; Kafka's names are what all clients share.
func named(err error) error {
	names := map[error]string{
		sarama.ErrTopicAuthorizationFailed: "TOPIC_AUTHORIZATION_FAILED",
		sarama.ErrGroupAuthorizationFailed: "GROUP_AUTHORIZATION_FAILED",
		sarama.ErrSASLAuthenticationFailed: "SASL_AUTHENTICATION_FAILED",
	}
	for known, name := range names {
		if errors.Is(err, known) {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return err
}

func writeSecurely(way common.Way, topic string, count int) (int, error) {
	producer, err := sarama.NewSyncProducer([]string{way.Bootstrap}, securedConfig(way))
	if err != nil {
		return 0, named(err)
	}
	defer producer.Close()
	var messages []*sarama.ProducerMessage
	for range count {
		messages = append(messages, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("a record")})
	}
	if err := producer.SendMessages(messages); err != nil {
		var each sarama.ProducerErrors
		if errors.As(err, &each) && len(each) > 0 {
			err = each[0].Err
		}
		return 0, named(err)
	}
	return count, nil
}

// counter counts what a member reads, and ends its session when that is enough.
type counter struct {
	count int
	done  context.CancelFunc
}

func (*counter) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*counter) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *counter) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		session.MarkMessage(message, "")
		if c.count++; c.count >= common.Records {
			session.Commit()
			c.done()
			return nil
		}
	}
	return nil
}

func readSecurely(way common.Way, group string) (int, error) {
	config := securedConfig(way)
	// The partitions are read one by one: there is one counter.
	config.ChannelBufferSize = 0
	member, err := sarama.NewConsumerGroup([]string{way.Bootstrap}, group, config)
	if err != nil {
		return 0, named(err)
	}
	defer member.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	counter := &counter{done: cancel}
	err = member.Consume(ctx, []string{"orders"}, counter)
	// That of the first group may have to be made yet.
	for errors.Is(err, sarama.ErrConsumerCoordinatorNotAvailable) && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
		err = member.Consume(ctx, []string{"orders"}, counter)
	}
	if err != nil {
		return counter.count, named(err)
	}
	return min(counter.count, common.Records), nil
}
