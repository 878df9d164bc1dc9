package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"mainstem/interop/common"
)

const timeout = 30 * time.Second

func secure(args common.Arguments) error {
	return common.Secure(args, "franz", common.Steps{Write: writeSecurely, Read: readSecurely})
}

func securedClient(way common.Way, more ...kgo.Opt) (*kgo.Client, error) {
	options := []kgo.Opt{kgo.SeedBrokers(way.Bootstrap), kgo.DialTLSConfig(way.TLS()), kgo.RecordRetries(3)}
	auth := scram.Auth{User: way.User, Pass: way.Password}
	switch way.Mechanism {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: way.User, Pass: way.Password}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(auth.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(auth.AsSha512Mechanism()))
	}
	return kgo.NewClient(append(options, more...)...)
}

func writeSecurely(way common.Way, topic string, count int) (int, error) {
	client, err := securedClient(way)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := client.Ping(ctx); err != nil {
		return 0, err
	}
	var first kgo.FirstErrPromise
	for range count {
		client.Produce(ctx, &kgo.Record{Topic: topic, Value: []byte("a record")}, first.Promise())
	}
	return count, first.Err()
}

func readSecurely(way common.Way, group string) (int, error) {
	client, err := securedClient(way, kgo.ConsumerGroup(group), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	count := 0
	for count < common.Records {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return count, err
		}
		count += fetches.NumRecords()
	}
	return common.Records, client.CommitUncommittedOffsets(ctx)
}
