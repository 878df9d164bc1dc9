//! Makes the configuration of a node from its values, and reports every problem on the way.

use std::collections::BTreeMap;

use super::BrokerConfig;
use super::typed::Typed;
use crate::broker_values::BrokerValues;
use crate::futile;
use crate::nodes::{NodeListener, Proof};
use crate::others;
use crate::problem::ConfigError;
use crate::protection;
use crate::sasl;
use crate::sources::Sources;
use crate::tls;
use crate::warning::ConfigWarning;

impl BrokerConfig {
    /// Reads, validates and types the values that are known at start; it reports every problem, not only the first.
    pub fn from_sources(sources: Sources<'_>) -> Result<BrokerConfig, ConfigError> {
        let (values, warnings) = BrokerValues::from_sources(sources)?;
        let missing = protection::missing(&values);
        match BrokerConfig::new(values, warnings) {
            Ok(config) if missing.is_empty() => Ok(config),
            Ok(_) => Err(ConfigError { problems: missing }),
            Err(ConfigError { problems }) => {
                Err(ConfigError { problems: missing.into_iter().chain(problems).collect() })
            }
        }
    }

    /// The same node with values that were set while it runs: the cluster's defaults, and its own over them. Read-only keys
    /// do not change.
    pub fn with_dynamic(
        &self,
        cluster: BTreeMap<String, String>,
        node: BTreeMap<String, String>,
    ) -> Result<BrokerConfig, ConfigError> {
        BrokerConfig::new(self.values.with_dynamic(cluster, node), self.warnings.clone())
    }

    fn new(values: BrokerValues, warnings: Vec<ConfigWarning>) -> Result<BrokerConfig, ConfigError> {
        let typed = Typed(&values);
        let mut problems = Vec::new();
        let node_id = typed.node_id().map_err(|problem| problems.push(problem)).ok();
        let listeners = typed.listeners().map_err(|problem| problems.push(problem)).ok();
        let open = listeners.as_ref().map_or(&[][..], |listeners| &listeners.open);
        let sasl_listeners = sasl::listeners(&values, open).map_err(|found| problems.extend(found)).ok();
        let tls_listeners = tls::listeners(&values, open);
        problems.extend(typed.open_listener(open, &tls_listeners));
        let network = typed.network().map_err(|problem| problems.push(problem)).ok();
        let http_listener = typed.http_listener().map_err(|problem| problems.push(problem)).ok();
        let http_tls = tls::http(&values, typed.http_authentication());
        let quorum = typed.quorum(node_id, listeners.as_ref()).map_err(|problem| problems.push(problem));
        let quorum = quorum.unwrap_or_default();
        if quorum.is_none() && listeners.is_some() {
            problems.extend(others::signs(&values));
        }
        let nodes = listeners.as_ref().filter(|_| quorum.is_some()).map_or(Ok(None), |listeners| {
            let proof = Proof {
                is_required: typed.boolean("mainstem.require.authentication"),
                is_waived: typed.boolean("mainstem.unauthenticated.nodes"),
            };
            NodeListener::new(&values, listeners, proof)
        });
        let nodes = nodes.map_err(|found| problems.extend(found)).unwrap_or_default();
        let attach = typed.attach().map_err(|problem| problems.push(problem)).unwrap_or_default();
        problems.extend(typed.conflicts());
        let (Some(node_id), Some(listeners), Some(sasl_listeners), Some(network), Some(http_listener)) =
            (node_id, listeners, sasl_listeners, network, http_listener)
        else {
            return Err(ConfigError { problems });
        };
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        let mut config = BrokerConfig {
            node_id,
            rack: typed.text("broker.rack"),
            replication: typed.replication(),
            listeners,
            sasl_listeners,
            tls_listeners,
            nodes,
            authorizer: typed.authorizer(),
            authentication: typed.authentication(),
            log_dirs: typed.list("log.dirs"),
            cordoned_log_dirs: typed.list("cordoned.log.dirs"),
            metadata_log_dir: typed.text("metadata.log.dir"),
            attach,
            http_listener,
            http_tls,
            metrics_partitions_max: typed.count("mainstem.metrics.partitions.max"),
            topics: typed.topics(),
            network,
            quotas: typed.quotas(),
            groups: typed.groups(),
            offsets: typed.offsets(quorum.as_ref()),
            transactions: typed.transactions(quorum.as_ref()),
            logs: typed.logs(),
            cleaner: typed.cleaner(),
            metadata_log: typed.metadata_log(),
            quorum,
            warnings,
            values,
        };
        config.warnings.retain(|warning| !warning.is_of_values_together());
        config.warnings.extend(futile::warnings(&config));
        Ok(config)
    }
}
