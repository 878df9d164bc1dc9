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


def confluent_way(way):
    settings = confluent(way["bootstrap"], way["ca"], way["user"], way["password"], way["mechanism"])
    if not way["mechanism"]:
        settings = {name: value for name, value in settings.items() if not name.startswith("sasl.")}
        settings["security.protocol"] = "SSL"
    if way["cert"]:
        settings |= {"ssl.certificate.location": way["cert"], "ssl.key.location": way["cert"]}
    return settings


def kafka_python_way(way):
    settings = kafka_python(way["bootstrap"], way["ca"], way["user"], way["password"], way["mechanism"])
    if not way["mechanism"]:
        settings = {name: value for name, value in settings.items() if not name.startswith("sasl_")}
        settings["security_protocol"] = "SSL"
    if way["cert"]:
        settings |= {"ssl_certfile": way["cert"], "ssl_keyfile": way["cert"]}
    return settings


def aiokafka_way(way):
    settings = kafka_python_way(way)
    context = ssl.create_default_context(cafile=settings.pop("ssl_cafile"))
    if way["cert"]:
        context.load_cert_chain(settings.pop("ssl_certfile"), settings.pop("ssl_keyfile"))
    return settings | {"ssl_context": context}
