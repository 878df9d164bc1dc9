package main

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"mainstem/interop/common"
)

// admin creates, describes, alters and deletes a topic, its configuration, its records and a group's offsets.
func admin(args common.Arguments) error {
	client, err := sarama.NewClient(addresses(args), newConfig())
	if err != nil {
		return err
	}
	defer client.Close()
	clusterAdmin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	a := &administration{args: args, client: client, admin: clusterAdmin, topic: args["topic"]}
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
	args   common.Arguments
	client sarama.Client
	admin  sarama.ClusterAdmin
	topic  string
}

func (a *administration) isListed() (bool, error) {
	topics, err := a.admin.ListTopics()
	_, found := topics[a.topic]
	return found, err
}

func (a *administration) createTopic() error {
	hour := "3600000"
	detail := &sarama.TopicDetail{
		NumPartitions: 2, ReplicationFactor: 1, ConfigEntries: map[string]*string{"retention.ms": &hour},
	}
	if err := a.admin.CreateTopic(a.topic, detail, false); err != nil {
		return err
	}
	again := a.admin.CreateTopic(a.topic, detail, false)
	if err := common.ExpectError(again, sarama.ErrTopicAlreadyExists); err != nil {
		return err
	}
	return common.Until(a.isListed, "listed after creation")
}

func (a *administration) config(name string) (sarama.ConfigEntry, error) {
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: a.topic, ConfigNames: []string{name}}
	entries, err := a.admin.DescribeConfig(resource)
	if err != nil || len(entries) != 1 {
		return sarama.ConfigEntry{}, fmt.Errorf("describe %s: %d entries, %w", name, len(entries), err)
	}
	return entries[0], nil
}

func (a *administration) awaitConfig(name, value string) error {
	return common.Until(func() (bool, error) {
		entry, err := a.config(name)
		return entry.Value == value, err
	}, name+" is "+value)
}

func (a *administration) alter(operation sarama.IncrementalAlterConfigsOperation, name, value string) error {
	entries := map[string]sarama.IncrementalAlterConfigsEntry{name: {Operation: operation, Value: &value}}
	return a.admin.IncrementalAlterConfig(sarama.TopicResource, a.topic, entries, false)
}

func (a *administration) configs() error {
	return errors.Join(
		a.awaitConfig("retention.ms", "3600000"),
		a.awaitConfig("segment.bytes", "1073741824"),
		a.alter(sarama.IncrementalAlterConfigsOperationSet, "retention.ms", "7200000"),
		a.awaitConfig("retention.ms", "7200000"),
		a.alter(sarama.IncrementalAlterConfigsOperationDelete, "retention.ms", ""),
		a.awaitConfig("retention.ms", "604800000"),
		common.ExpectError(a.alter(sarama.IncrementalAlterConfigsOperationSet, "segment.bytes", "none"),
			sarama.ErrInvalidConfig),
	)
}

func (a *administration) addPartitions() error {
	if err := a.admin.CreatePartitions(a.topic, 4, nil, false); err != nil {
		return err
	}
	return errors.Join(
		common.ExpectError(a.admin.CreatePartitions(a.topic, 3, nil, false), sarama.ErrInvalidPartitions),
		common.Until(func() (bool, error) {
			topics, err := a.admin.DescribeTopics([]string{a.topic})
			return err == nil && len(topics) == 1 && len(topics[0].Partitions) == 4, err
		}, "four partitions"),
	)
}

func (a *administration) deleteRecords() error {
	producer, outcomes, err := newProducer(a.args, "none", sarama.NewManualPartitioner)
	if err != nil {
		return err
	}
	for i := range 10 {
		value := sarama.StringEncoder(fmt.Sprintf("record %d", i))
		producer.Input() <- &sarama.ProducerMessage{Topic: a.topic, Partition: 0, Value: value}
	}
	if err := outcomes.finish(producer, nil); err != nil {
		return err
	}
	if err := a.admin.DeleteRecords(a.topic, map[int32]int64{0: 4}); err != nil {
		return err
	}
	start, startErr := a.client.GetOffset(a.topic, 0, sarama.OffsetOldest)
	end, endErr := a.client.GetOffset(a.topic, 0, sarama.OffsetNewest)
	return errors.Join(startErr, endErr, common.Check(start == 4 && end == 10, "begins at 4, ends at 10"))
}

func (a *administration) groupOffsets() error {
	group := a.topic + "-group"
	offsets := map[string]map[int32]sarama.OffsetAndMetadata{a.topic: {0: {Offset: 7, LeaderEpoch: -1}}}
	if _, err := a.admin.AlterConsumerGroupOffsets(group, offsets, nil); err != nil {
		return err
	}
	committed, err := a.admin.ListConsumerGroupOffsets(group, map[string][]int32{a.topic: {0}})
	if err != nil {
		return err
	}
	listed, err := a.admin.ListConsumerGroups()
	if err != nil {
		return err
	}
	described, err := a.admin.DescribeConsumerGroups([]string{group})
	if err != nil {
		return err
	}
	block := committed.GetBlock(a.topic, 0)
	_, isListed := listed[group]
	return errors.Join(
		common.Check(block != nil && block.Offset == 7, "the committed offset"),
		common.Check(isListed, "the group is listed"),
		common.Check(described[0].State == "Empty", "the group is empty"))
}

func (a *administration) cluster() error {
	brokers, controller, err := a.admin.DescribeCluster()
	return errors.Join(err, common.Check(len(brokers) > 0 && controller >= 0, "a node and a controller"))
}

func (a *administration) deleteTopic() error {
	if err := a.admin.DeleteTopic(a.topic); err != nil {
		return err
	}
	return common.Until(func() (bool, error) {
		listed, err := a.isListed()
		return !listed, err
	}, "gone after deletion")
}
