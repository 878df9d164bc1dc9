package main

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"mainstem/interop/common"
)

func sessions(args common.Arguments) error {
	return common.Sessions(args, "franz", func(way common.Way, topic, group string) (common.Session, error) {
		client, err := securedClient(way, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DefaultProduceTopic(topic))
		return &session{client: client}, err
	})
}

type session struct {
	client *kgo.Client
	first  kgo.FirstErrPromise
}

func (s *session) Send(value string) error {
	s.client.Produce(context.Background(), &kgo.Record{Value: []byte(value)}, s.first.Promise())
	return nil
}

func (s *session) Flush() error {
	return s.first.Err()
}

func (s *session) Poll(wait time.Duration) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	fetches := s.client.PollFetches(ctx)
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) {
			return nil, failed.Err
		}
	}
	var values []string
	fetches.EachRecord(func(record *kgo.Record) { values = append(values, string(record.Value)) })
	return values, nil
}
