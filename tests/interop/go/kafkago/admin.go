package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"

	"mainstem/interop/common"
)

// admin creates, describes, alters and deletes a topic, its configuration and a group's offsets. The client has no call
// that deletes records.
func admin(args common.Arguments) error {
	ctx, cancel := common.WithDeadline()
	defer cancel()
	a := &administration{ctx: ctx, args: args, client: newClient(args), topic: args["topic"]}
	for _, step := range []func() error{
		a.createTopic, a.configs, a.addPartitions, a.listOffsets, a.groupOffsets, a.cluster, a.deleteTopic,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

type administration struct {
	ctx    context.Context
	args   common.Arguments
	client *kafka.Client
	topic  string
}

// partitions is how many the topic has, 0 if there is no such topic.
func (a *administration) partitions() (int, error) {
	metadata, err := a.client.Metadata(a.ctx, &kafka.MetadataRequest{})
	if err != nil {
		return 0, err
	}
	for _, topic := range metadata.Topics {
		if topic.Name == a.topic {
			return len(topic.Partitions), nil
		}
	}
	return 0, nil
}

func (a *administration) awaitPartitions(count int) error {
	return common.Until(func() (bool, error) {
		found, err := a.partitions()
		return found == count, err
	}, fmt.Sprintf("%d partitions", count))
}

func (a *administration) createTopic() error {
	request := &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: a.topic, NumPartitions: 2, ReplicationFactor: 1,
		ConfigEntries: []kafka.ConfigEntry{{ConfigName: "retention.ms", ConfigValue: "3600000"}},
	}}}
	created, err := a.client.CreateTopics(a.ctx, request)
	if err != nil {
		return err
	}
	again, err := a.client.CreateTopics(a.ctx, request)
	if err != nil {
		return err
	}
	return errors.Join(
		created.Errors[a.topic],
		common.ExpectError(again.Errors[a.topic], kafka.TopicAlreadyExists),
		a.awaitPartitions(2))
}

func (a *administration) awaitConfig(name, value string) error {
	request := &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: a.topic, ConfigNames: []string{name},
	}}}
	return common.Until(func() (bool, error) {
		response, err := a.client.DescribeConfigs(a.ctx, request)
		if err != nil {
			return false, err
		}
		entries := response.Resources[0].ConfigEntries
		return len(entries) == 1 && entries[0].ConfigValue == value, response.Resources[0].Error
	}, name+" is "+value)
}

func (a *administration) alter(operation kafka.ConfigOperation, name, value string) error {
	response, err := a.client.IncrementalAlterConfigs(a.ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: a.topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{
				Name: name, Value: value, ConfigOperation: operation,
			}},
		}},
	})
	if err != nil {
		return err
	}
	return response.Resources[0].Error
}

func (a *administration) configs() error {
	return errors.Join(
		a.awaitConfig("retention.ms", "3600000"),
		a.awaitConfig("segment.bytes", "1073741824"),
		a.alter(kafka.ConfigOperationSet, "retention.ms", "7200000"),
		a.awaitConfig("retention.ms", "7200000"),
		a.alter(kafka.ConfigOperationDelete, "retention.ms", ""),
		a.awaitConfig("retention.ms", "604800000"),
		common.ExpectError(a.alter(kafka.ConfigOperationSet, "segment.bytes", "none"), kafka.InvalidConfiguration),
	)
}

func (a *administration) addPartitions() error {
	grow := func(count int32) (error, error) {
		response, err := a.client.CreatePartitions(a.ctx, &kafka.CreatePartitionsRequest{
			Topics: []kafka.TopicPartitionsConfig{{Name: a.topic, Count: count}},
		})
		if err != nil {
			return nil, err
		}
		return response.Errors[a.topic], nil
	}
	more, moreErr := grow(4)
	fewer, fewerErr := grow(3)
	return errors.Join(more, moreErr, fewerErr,
		common.ExpectError(fewer, kafka.InvalidPartitionNumber),
		a.awaitPartitions(4))
}

func (a *administration) listOffsets() error {
	var acks common.Acknowledgements
	writer := newWriter(a.args, "none", a.topic, kafka.BalancerFunc(chosen), &acks)
	for i := range 10 {
		message := kafka.Message{Value: fmt.Appendf(nil, "record %d", i), WriterData: 0}
		if err := writer.WriteMessages(a.ctx, message); err != nil {
			return err
		}
	}
	if err := acks.Finish(writer.Close()); err != nil {
		return err
	}
	found, err := offsets(a.ctx, a.args, a.topic)
	if err != nil {
		return err
	}
	for _, partition := range found {
		if partition.Partition == 0 {
			return common.Check(partition.FirstOffset == 0 && partition.LastOffset == 10, "begins at 0, ends at 10")
		}
	}
	return common.Check(false, "the offsets of partition 0 are listed")
}

func (a *administration) groupOffsets() error {
	group := a.topic + "-group"
	_, err := a.client.OffsetCommit(a.ctx, &kafka.OffsetCommitRequest{
		GroupID: group, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{a.topic: {{Partition: 0, Offset: 7}}},
	})
	if err != nil {
		return err
	}
	committed, err := a.client.OffsetFetch(a.ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{a.topic: {0}},
	})
	if err != nil {
		return err
	}
	listed, err := a.client.ListGroups(a.ctx, &kafka.ListGroupsRequest{})
	if err != nil {
		return err
	}
	described, err := a.client.DescribeGroups(a.ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	if err != nil {
		return err
	}
	isListed := false
	for _, found := range listed.Groups {
		isListed = isListed || found.GroupID == group
	}
	return errors.Join(
		common.Check(committed.Topics[a.topic][0].CommittedOffset == 7, "the committed offset"),
		common.Check(isListed, "the group is listed"),
		common.Check(described.Groups[0].GroupState == "Empty", "the group is empty"))
}

func (a *administration) cluster() error {
	metadata, err := a.client.Metadata(a.ctx, &kafka.MetadataRequest{})
	if err != nil {
		return err
	}
	return common.Check(len(metadata.Brokers) > 0 && metadata.ClusterID != "", "a node and a cluster id")
}

func (a *administration) deleteTopic() error {
	response, err := a.client.DeleteTopics(a.ctx, &kafka.DeleteTopicsRequest{Topics: []string{a.topic}})
	if err != nil {
		return err
	}
	return errors.Join(response.Errors[a.topic], a.awaitPartitions(0))
}
