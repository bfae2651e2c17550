# syntax=docker/dockerfile:1
# A static binary in an empty image: no shell, no libraries, no root.
#
#   docker build -t outrigger .
#   docker run --rm -v ./outrigger.yaml:/etc/outrigger/outrigger.yaml:ro outrigger
#
# As a sidecar it shares the network of the app's container, so the app's localhost is its own.
# Alone, publish ports of a listener that is not on loopback: `run --listen 0.0.0.0:15001`.

# Rust on Alpine builds for musl by itself, on x86-64 and arm64 alike: the binary is static.
FROM rust:1.95-alpine AS build
RUN apk add --no-cache musl-dev
WORKDIR /src
COPY . .
# An image has no use for the line tables of a developer's build; they are most of its size.
ENV CARGO_PROFILE_RELEASE_STRIP=symbols
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --bin outrigger \
    && cp target/release/outrigger /outrigger

FROM scratch
COPY --from=build /outrigger /outrigger
COPY LICENSE /LICENSE
# The examples of distroless use this number for "nonroot"; there is no /etc/passwd to name it.
USER 65532:65532
WORKDIR /etc/outrigger
# Telemetry. The data and admin listeners are on loopback unless the configuration says otherwise.
EXPOSE 15003
# Asks the running process over its own listener; works without a shell.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
    CMD ["/outrigger", "healthcheck"]
# SIGTERM drains; give the container longer than app.shutdown.drain_timeout (25s).
STOPSIGNAL SIGTERM
ENTRYPOINT ["/outrigger"]
CMD ["run"]
