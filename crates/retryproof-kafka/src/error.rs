// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts librdkafka's errors to the library's `Error`.

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use retryproof_core::{Error, ErrorKind};

/// Returns the error for an invalid setting of the listener.
pub(crate) fn invalid_setting(message: &'static str) -> Error {
    Error::new(ErrorKind::Config, message)
}

/// Returns the error for a client setting that librdkafka rejects. The error names the setting, but
/// omits librdkafka's own error. That error contains the setting's value, which can be a password
/// (ID-4).
pub(crate) fn invalid_client_setting(error: KafkaError) -> Error {
    let setting = match &error {
        KafkaError::ClientConfig(_, _, name, _) => name.clone(),
        _ => "client".to_owned(),
    };
    invalid_setting("librdkafka rejected the value of a client setting").with("setting", setting)
}

/// Returns the error for a client that cannot continue.
pub(crate) fn client_failed(error: KafkaError, operation: &'static str) -> Error {
    Error::new(ErrorKind::Unexpected, "the Kafka client failed and cannot continue")
        .during(operation)
        .because(error)
}

pub(crate) fn dead_letter_not_delivered(error: KafkaError) -> Error {
    Error::unavailable("no broker confirmed that it stored the dead letter").because(error)
}

pub(crate) fn is_topic_missing(error: &KafkaError) -> bool {
    matches!(
        error.rdkafka_error_code(),
        Some(
            RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::TopicAuthorizationFailed
                | RDKafkaErrorCode::InvalidTopic
        )
    )
}

pub(crate) fn is_too_large(error: &KafkaError) -> bool {
    error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge)
}
