//! Snapshots of the metadata (KIP-630): the records of an image, without those that later ones replaced.

use std::borrow::Cow;

use mainstem_wire::messages::config_record::ConfigRecord;
use mainstem_wire::messages::feature_level_record::FeatureLevelRecord;
use mainstem_wire::messages::producer_ids_record::ProducerIdsRecord;
use mainstem_wire::messages::topic_record::TopicRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::image::{ConfigResource, MetadataImage, TopicImage};
use super::registration::registration_record;
use super::state_machine::version_of;
use super::{acls, client_quotas, scram_credentials};

impl MetadataImage {
    /// Values of records that make this image from an empty one, in Kafka's order: features first, since they determine the versions of the
    /// others, and then each kind after those that it names.
    pub fn snapshot(&self) -> impl Iterator<Item = Vec<u8>> {
        // A new field needs its records here.
        let MetadataImage {
            next_offset: _,
            topics: _,
            ids: _,
            colliding: _,
            configs,
            brokers,
            controllers,
            features,
            next_producer_id,
            client_quotas,
            acls,
            scram,
            tokens,
        } = self;
        let features = features.iter().map(feature_record);
        let brokers = brokers.values().map(registration_record);
        let controllers = controllers.records();
        let topics = self.topics().flat_map(topic_records);
        let configs = configs
            .iter()
            .flat_map(|(resource, values)| values.iter().map(move |value| config_record(resource, value)));
        let quotas = client_quotas.iter().flat_map(|(entity, values)| {
            values.iter().map(move |(key, value)| client_quotas::record(entity, key, Some(*value)))
        });
        let producer_ids = (*next_producer_id > 0).then(|| producer_ids_record(*next_producer_id));
        let acls = acls.iter().map(|(id, binding)| acls::record(*id, binding));
        let scram = scram.iter().flat_map(|(mechanism, users)| {
            users.iter().map(|(user, credential)| scram_credentials::record(user, *mechanism, credential))
        });
        let records = features
            .chain(brokers)
            .chain(controllers)
            .chain(topics)
            .chain(configs)
            .chain(quotas)
            .chain(producer_ids);
        let records = records.chain(acls).chain(scram);
        let records = records.map(|record| {
            let mut value = Vec::new();
            record
                .encode(&mut value, version_of(&record))
                .expect("the versions have all that an image holds");
            value
        });
        records.chain(tokens.values().cloned())
    }
}

fn feature_record((name, level): (&String, &i16)) -> MetadataRecord<'static> {
    MetadataRecord::FeatureLevelRecord(Box::new(FeatureLevelRecord {
        name: Cow::Owned(name.clone()),
        feature_level: *level,
        ..FeatureLevelRecord::default()
    }))
}

fn topic_records(topic: &TopicImage) -> impl Iterator<Item = MetadataRecord<'static>> {
    let record = MetadataRecord::TopicRecord(Box::new(TopicRecord {
        name: Cow::Owned(topic.name.clone()),
        topic_id: topic.id,
        ..TopicRecord::default()
    }));
    let partitions = (0..).zip(&topic.partitions);
    std::iter::once(record).chain(partitions.map(|(number, partition)| partition.record(topic.id, number)))
}

fn config_record(resource: &ConfigResource, (name, value): (&String, &String)) -> MetadataRecord<'static> {
    MetadataRecord::ConfigRecord(Box::new(ConfigRecord {
        resource_type: resource.kind as i8,
        resource_name: Cow::Owned(resource.name.clone()),
        name: Cow::Owned(name.clone()),
        value: Some(Cow::Owned(value.clone())),
        ..ConfigRecord::default()
    }))
}

fn producer_ids_record(next: i64) -> MetadataRecord<'static> {
    MetadataRecord::ProducerIdsRecord(Box::new(ProducerIdsRecord {
        // The node that took the last block is not read.
        broker_id: -1,
        next_producer_id: next,
        ..ProducerIdsRecord::default()
    }))
}
