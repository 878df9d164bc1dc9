package main

import (
	"context"
	"time"

	"github.com/IBM/sarama"

	"mainstem/interop/common"
)

func sessions(args common.Arguments) error {
	return common.Sessions(args, "sarama", beginSession)
}

// session is an idempotent producer, and a member of a group whose values and errors come through channels.
type session struct {
	topic    string
	producer sarama.SyncProducer
	values   chan string
	failures chan error
}

func beginSession(way common.Way, topic, group string) (common.Session, error) {
	config := securedConfig(way)
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Net.MaxOpenRequests = 1
	config.Metadata.Retry.Max = 3
	// The coordinator of the first group may not be there yet.
	config.Consumer.Group.Rebalance.Retry.Max = 3
	producer, err := sarama.NewSyncProducer([]string{way.Bootstrap}, config)
	if err != nil {
		return nil, named(err)
	}
	member, err := sarama.NewConsumerGroup([]string{way.Bootstrap}, group, config)
	if err != nil {
		return nil, named(err)
	}
	s := &session{topic: topic, producer: producer, values: make(chan string, 1000), failures: make(chan error, 10)}
	go func() {
		for err := range member.Errors() {
			s.fail(err)
		}
	}()
	go func() {
		for {
			if err := member.Consume(context.Background(), []string{topic}, s); err != nil {
				s.fail(err)
			}
		}
	}()
	return s, nil
}

func (s *session) fail(err error) {
	select {
	case s.failures <- named(err):
	default:
	}
}

func (*session) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*session) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (s *session) ConsumeClaim(member sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		s.values <- string(message.Value)
		member.MarkMessage(message, "")
	}
	return nil
}

func (s *session) Send(value string) error {
	_, _, err := s.producer.SendMessage(&sarama.ProducerMessage{Topic: s.topic, Value: sarama.StringEncoder(value)})
	return named(err)
}

func (s *session) Flush() error { return nil }

func (s *session) Poll(wait time.Duration) ([]string, error) {
	var values []string
	for end := time.After(wait); ; {
		select {
		case value := <-s.values:
			values = append(values, value)
		case err := <-s.failures:
			return values, err
		case <-end:
			return values, nil
		}
	}
}
