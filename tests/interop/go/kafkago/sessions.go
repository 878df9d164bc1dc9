package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
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
	// What the reader has committed, and where it began.
	committed commits
}

// Counts are how often the reader began at committed offsets of a partition, and how often it had to begin behind a commit
// that had been acknowledged.
func (s *session) Counts() map[string]int {
	s.committed.lock.Lock()
	defer s.committed.lock.Unlock()
	return map[string]int{"begun": s.committed.begun, "behind": s.committed.behind}
}

// commits follow by the reader's log what the broker acknowledges, and what it then answers to a member that begins. The reader
// ends the commits of a generation before it joins the next one.
type commits struct {
	lock   sync.Mutex
	acked  map[int]int64
	begun  int
	behind int
}

var (
	acknowledged = regexp.MustCompile(`partition (\d+): (\d+)`)
	subscribed   = regexp.MustCompile(`partition:(\d+)\}:(-?\d+)`)
)

// Printf takes a line of the reader's log.
func (c *commits) Printf(format string, values ...any) {
	line := fmt.Sprintf(format, values...)
	c.lock.Lock()
	defer c.lock.Unlock()
	if strings.HasPrefix(line, "committed offsets") {
		if c.acked == nil {
			c.acked = map[int]int64{}
		}
		for partition, offset := range offsetsOf(acknowledged, line) {
			c.acked[partition] = offset
		}
	}
	if strings.HasPrefix(line, "subscribed to topics") {
		for partition, offset := range offsetsOf(subscribed, line) {
			if acked, has := c.acked[partition]; has {
				c.begun++
				if offset < acked {
					c.behind++
				}
			}
		}
	}
}

func offsetsOf(pattern *regexp.Regexp, line string) map[int]int64 {
	offsets := map[int]int64{}
	for _, found := range pattern.FindAllStringSubmatch(line, -1) {
		partition, _ := strconv.Atoi(found[1])
		offsets[partition], _ = strconv.ParseInt(found[2], 10, 64)
	}
	return offsets
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
	s := &session{writer: writer, values: make(chan string, 1000), failed: make(chan error, 1)}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{way.Bootstrap}, GroupID: group, Topic: topic,
		Dialer: dialer, StartOffset: kafka.FirstOffset, MaxWait: 500 * time.Millisecond, Logger: &s.committed})
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
