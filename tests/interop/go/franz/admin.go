package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"mainstem/interop/common"
)

// admin creates, describes, alters and deletes a topic, its configuration, its records and a group's offsets.
func admin(args common.Arguments) error {
	client, err := newClient(args, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := common.WithDeadline()
	defer cancel()
	a := &administration{ctx: ctx, client: client, admin: kadm.NewClient(client), topic: args["topic"]}
	for _, step := range []func() error{
		a.createTopic, a.configs, a.addPartitions, a.deleteRecords, a.groupOffsets, a.cluster, a.deleteTopic,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

type administration struct {
	ctx    context.Context
	client *kgo.Client
	admin  *kadm.Client
	topic  string
}

func (a *administration) createTopic() error {
	retention := "3600000"
	settings := map[string]*string{"retention.ms": &retention}
	if _, err := a.admin.CreateTopic(a.ctx, 2, 1, settings, a.topic); err != nil {
		return err
	}
	_, again := a.admin.CreateTopic(a.ctx, 2, 1, settings, a.topic)
	if err := common.ExpectError(again, kerr.TopicAlreadyExists); err != nil {
		return err
	}
	return common.Until(func() (bool, error) {
		topics, err := a.admin.ListTopics(a.ctx)
		return topics.Has(a.topic) && len(topics[a.topic].Partitions) == 2 && topics[a.topic].ID != kadm.TopicID{}, err
	}, "listed with two partitions and an id")
}

func (a *administration) config(name string) (kadm.Config, error) {
	configs, err := a.admin.DescribeTopicConfigs(a.ctx, a.topic)
	if err != nil {
		return kadm.Config{}, err
	}
	for _, config := range configs[0].Configs {
		if config.Key == name {
			return config, configs[0].Err
		}
	}
	return kadm.Config{}, fmt.Errorf("no config %s: %w", name, configs[0].Err)
}

func (a *administration) alter(operation kadm.IncrementalOp, name, value string) error {
	altered, err := a.admin.AlterTopicConfigs(a.ctx, []kadm.AlterConfig{{Op: operation, Name: name, Value: &value}}, a.topic)
	if err != nil {
		return err
	}
	return altered[0].Err
}

func (a *administration) expectConfig(name, value, source string) error {
	return common.Until(func() (bool, error) {
		config, err := a.config(name)
		return err == nil && config.MaybeValue() == value && config.Source.String() == source, err
	}, fmt.Sprintf("%s is %s by %s", name, value, source))
}

func (a *administration) configs() error {
	return errors.Join(
		a.expectConfig("retention.ms", "3600000", "DYNAMIC_TOPIC_CONFIG"),
		a.expectConfig("segment.bytes", "1073741824", "DEFAULT_CONFIG"),
		a.alter(kadm.SetConfig, "retention.ms", "7200000"),
		a.expectConfig("retention.ms", "7200000", "DYNAMIC_TOPIC_CONFIG"),
		a.alter(kadm.DeleteConfig, "retention.ms", ""),
		a.expectConfig("retention.ms", "604800000", "DEFAULT_CONFIG"),
		common.ExpectError(a.alter(kadm.SetConfig, "segment.bytes", "none"), kerr.InvalidConfig),
	)
}

func (a *administration) addPartitions() error {
	if _, err := a.admin.UpdatePartitions(a.ctx, 4, a.topic); err != nil {
		return err
	}
	fewer, err := a.admin.UpdatePartitions(a.ctx, 3, a.topic)
	if err != nil {
		return err
	}
	return errors.Join(
		common.ExpectError(fewer[a.topic].Err, kerr.InvalidPartitions),
		common.Until(func() (bool, error) {
			topics, err := a.admin.ListTopics(a.ctx, a.topic)
			return len(topics[a.topic].Partitions) == 4, err
		}, "four partitions"))
}

func (a *administration) deleteRecords() error {
	for i := range 10 {
		value := fmt.Appendf(nil, "record %d", i)
		if err := a.client.ProduceSync(a.ctx, &kgo.Record{Topic: a.topic, Value: value}).FirstErr(); err != nil {
			return err
		}
	}
	before := kadm.Offsets{}
	before.AddOffset(a.topic, 0, 4, -1)
	deleted, err := a.admin.DeleteRecords(a.ctx, before)
	if err != nil {
		return err
	}
	low, _ := deleted.Lookup(a.topic, 0)
	starts, errStarts := a.admin.ListStartOffsets(a.ctx, a.topic)
	ends, errEnds := a.admin.ListEndOffsets(a.ctx, a.topic)
	start, _ := starts.Lookup(a.topic, 0)
	end, _ := ends.Lookup(a.topic, 0)
	return errors.Join(errStarts, errEnds,
		common.Check(low.Err == nil && low.LowWatermark == 4, "low watermark 4"),
		common.Check(start.Offset == 4 && end.Offset == 10, "begins at 4, ends at 10"))
}

func (a *administration) groupOffsets() error {
	group := a.topic + "-group"
	offsets := kadm.Offsets{}
	offsets.AddOffset(a.topic, 0, 7, -1)
	if err := a.admin.CommitAllOffsets(a.ctx, group, offsets); err != nil {
		return err
	}
	fetched, errFetched := a.admin.FetchOffsets(a.ctx, group)
	committed, _ := fetched.Lookup(a.topic, 0)
	listed, errListed := a.admin.ListGroups(a.ctx)
	described, errDescribed := a.admin.DescribeGroups(a.ctx, group)
	return errors.Join(errFetched, errListed, errDescribed, described.Error(),
		common.Check(committed.At == 7, "the committed offset"),
		common.Check(listed[group].Group == group, "the group is listed"),
		common.Check(described[group].State == "Empty", "the group is empty"))
}

func (a *administration) cluster() error {
	metadata, err := a.admin.BrokerMetadata(a.ctx)
	return errors.Join(err, common.Check(len(metadata.Brokers) > 0 && metadata.Cluster != "", "a node and a cluster id"))
}

func (a *administration) deleteTopic() error {
	if _, err := a.admin.DeleteTopic(a.ctx, a.topic); err != nil {
		return err
	}
	return common.Until(func() (bool, error) {
		topics, err := a.admin.ListTopics(a.ctx)
		return !topics.Has(a.topic), err
	}, "gone after deletion")
}
