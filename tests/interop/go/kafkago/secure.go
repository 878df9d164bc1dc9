package main

import (
	"context"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"mainstem/interop/common"
)

const timeout = 30 * time.Second

func secure(args common.Arguments) error {
	return common.Secure(args, "kafkago", common.Steps{Write: writeSecurely, Read: readSecurely})
}

func mechanism(way common.Way) (sasl.Mechanism, error) {
	switch way.Mechanism {
	case "":
		return nil, nil
	case "PLAIN":
		return plain.Mechanism{Username: way.User, Password: way.Password}, nil
	case "SCRAM-SHA-256":
		return scram.Mechanism(scram.SHA256, way.User, way.Password)
	default:
		return scram.Mechanism(scram.SHA512, way.User, way.Password)
	}
}

func writeSecurely(way common.Way, topic string, count int) (int, error) {
	login, err := mechanism(way)
	if err != nil {
		return 0, err
	}
	transport := &kafka.Transport{TLS: way.TLS(), SASL: login}
	defer transport.CloseIdleConnections()
	writer := &kafka.Writer{Addr: kafka.TCP(way.Bootstrap), Topic: topic, Transport: transport, MaxAttempts: 3,
		BatchTimeout: 5 * time.Millisecond, RequiredAcks: kafka.RequireAll}
	defer writer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	messages := make([]kafka.Message, count)
	for i := range messages {
		messages[i].Value = []byte("a record")
	}
	if err := writer.WriteMessages(ctx, messages...); err != nil {
		if each, ok := err.(kafka.WriteErrors); ok {
			err = each[0]
		}
		return 0, err
	}
	return count, nil
}

func readSecurely(way common.Way, group string) (int, error) {
	login, err := mechanism(way)
	if err != nil {
		return 0, err
	}
	dialer := &kafka.Dialer{Timeout: 10 * time.Second, TLS: way.TLS(), SASLMechanism: login}
	// The reader tries for ever what it may not do; the first question of a member says why.
	conn, err := dialer.DialContext(context.Background(), "tcp", way.Bootstrap)
	if err != nil {
		return 0, err
	}
	conn.Close()
	client := &kafka.Client{Addr: kafka.TCP(way.Bootstrap), Transport: &kafka.Transport{TLS: way.TLS(), SASL: login}}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	found, err := client.FindCoordinator(ctx, &kafka.FindCoordinatorRequest{Key: group})
	if err != nil {
		return 0, err
	}
	if found.Error != nil {
		return 0, found.Error
	}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{way.Bootstrap}, GroupID: group, Topic: "orders",
		Dialer: dialer, StartOffset: kafka.FirstOffset, MaxWait: 500 * time.Millisecond})
	defer reader.Close()
	for count := range common.Records {
		if _, err := reader.ReadMessage(ctx); err != nil {
			return count, err
		}
	}
	return common.Records, nil
}
