"""Settings of clients that log in over TLS, as each client names them."""

import ssl


def confluent(bootstrap, ca, user, password, mechanism):
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": ca,
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
    }


def kafka_python(bootstrap, ca, user, password, mechanism):
    return {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": ca,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


def aiokafka(bootstrap, ca, user, password, mechanism):
    settings = kafka_python(bootstrap, ca, user, password, mechanism)
    return settings | {"ssl_context": ssl.create_default_context(cafile=settings.pop("ssl_cafile"))}
