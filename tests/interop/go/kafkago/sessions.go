package main

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go"

	"mainstem/interop/common"
)

func sessions(args common.Arguments) error {
	return common.Sessions(args, "kafkago", beginSession)
}

// session is a writer, and a reader in a group whose values come through a channel. Neither renews what it is logged in with:
// both log in again.
type session struct {
	writer *kafka.Writer
	values chan string
	failed chan error
}

func beginSession(way common.Way, topic, group string) (common.Session, error) {
	login, err := mechanism(way)
	if err != nil {
		return nil, err
	}
	transport := &kafka.Transport{TLS: way.TLS(), SASL: login}
	writer := &kafka.Writer{Addr: kafka.TCP(way.Bootstrap), Topic: topic, Transport: transport,
		BatchTimeout: 5 * time.Millisecond, RequiredAcks: kafka.RequireAll}
	dialer := &kafka.Dialer{Timeout: 10 * time.Second, TLS: way.TLS(), SASLMechanism: login}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{way.Bootstrap}, GroupID: group, Topic: topic,
		Dialer: dialer, StartOffset: kafka.FirstOffset, MaxWait: 500 * time.Millisecond})
	s := &session{writer, make(chan string, 1000), make(chan error, 1)}
	go func() {
		for {
			message, err := reader.FetchMessage(context.Background())
			if err != nil {
				s.failed <- err
				return
			}
			s.values <- string(message.Value)
			// A commit fails on a connection whose session is over: the next one has another.
			for tries := 0; reader.CommitMessages(context.Background(), message) != nil && tries < 50; tries++ {
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	return s, nil
}

func (s *session) Send(value string) error {
	return s.writer.WriteMessages(context.Background(), kafka.Message{Value: []byte(value)})
}

func (s *session) Flush() error { return nil }

func (s *session) Poll(wait time.Duration) ([]string, error) {
	var values []string
	for end := time.After(wait); ; {
		select {
		case value := <-s.values:
			values = append(values, value)
		case err := <-s.failed:
			return values, err
		case <-end:
			return values, nil
		}
	}
}
