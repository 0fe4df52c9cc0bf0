#include "messages/codec.hpp"

#include <cstdint>
#include <exception>
#include <msgpack.hpp>
#include <utility>
#include <variant>

#include "core/errors.hpp"
#include "messages/wire/decoder.hpp"
#include "messages/wire/encoder.hpp"
#include "messages/wire/kinds.hpp"

namespace troupe::messages {
namespace {

using core::Errc;

constexpr std::size_t kMaxDepth = 8;
constexpr std::size_t kEnvelopeFields = 6;

/// Scans the bytes without storing anything, so that later code cannot be made to allocate more than they are
/// worth: every element of every announced array takes at least a byte.
struct Survey : msgpack::null_visitor {
  explicit Survey(std::size_t bytes) : unannounced(bytes) {}

  bool start_array(std::uint32_t elements) {
    if (elements > unannounced || depth == kMaxDepth) return refuse("an array that the message cannot hold");
    unannounced -= elements;
    ++depth;
    return true;
  }
  bool end_array() { return depth-- > 0; }
  bool visit_nil() { return refuse("nil"); }
  bool visit_str(const char*, std::uint32_t) { return refuse("a text string"); }
  bool visit_float32(float) { return refuse("a float 32"); }
  bool visit_ext(const char*, std::uint32_t) { return refuse("an extension"); }
  bool start_map(std::uint32_t) { return refuse("a map"); }

  bool refuse(const char* what) {
    found = what;
    return false;
  }

  std::size_t unannounced;
  std::size_t depth = 0;
  const char* found = "the end, or a byte that MessagePack does not use";
};

core::Result<void> survey(const char* data, std::size_t size) {
  Survey visitor(size);
  std::size_t offset = 0;
  if (!msgpack::parse(data, size, offset, visitor)) {
    return core::fail(Errc::corrupt, "expected an envelope in {} bytes, found {} around byte {}", size,
                      visitor.found, offset);
  }
  if (offset != size) {
    return core::fail(Errc::corrupt, "expected an envelope of {} bytes, found {} bytes after it", offset,
                      size - offset);
  }
  return {};
}

/// The alternative of the variant with this tag.
template <std::size_t I = 0>
bool get_body(std::uint64_t tag, const msgpack::object& from, WireMessage& out, wire::Decoder& decoder) {
  if constexpr (I == std::variant_size_v<WireMessage>) {
    if (const auto name = wire::retired_name(tag); !name.empty()) {
      return decoder.stop("{} is what a process says to itself alone; no peer may send it", name);
    }
    return decoder.stop("expected the tag of a message, found {}; another build may have sent it", tag);
  } else {
    if (tag != wire::kWireKinds[I].tag) return get_body<I + 1>(tag, from, out, decoder);
    return decoder.get(from, out.emplace<I>()) || decoder.at(5);
  }
}

core::Result<WireEnvelope> read(const msgpack::object& root) {
  if (root.type != msgpack::type::ARRAY || root.via.array.size == 0) {
    return core::fail(Errc::corrupt, "expected an envelope, found {}", wire::type_of(root));
  }
  const msgpack::object* part = root.via.array.ptr;
  wire::Decoder decoder;
  std::uint64_t version = 0;
  if (decoder.get(part[0], version) && version != kProtocolVersion) {
    return core::fail(Errc::mismatch,
                      "expected version {} of the messages, found {}; run the same build on all ranks",
                      kProtocolVersion, version);
  }
  WireEnvelope envelope;
  std::uint64_t tag = 0;
  bool done = root.via.array.size == kEnvelopeFields
                  ? (decoder.get(part[0], version) || decoder.at(0)) &&
                        (decoder.get(part[1], tag) || decoder.at(1)) &&
                        (decoder.get(part[2], envelope.epoch) || decoder.at(2)) &&
                        (decoder.get(part[3], envelope.from) || decoder.at(3)) &&
                        (decoder.get(part[4], envelope.to) || decoder.at(4)) &&
                        get_body(tag, part[5], envelope.body, decoder)
                  : decoder.stop("expected {} parts, found {}", kEnvelopeFields, root.via.array.size);
  if (!done) {
    return core::fail(Errc::corrupt, "envelope{} (tag {}): {}", decoder.path(), tag, decoder.complaint());
  }
  return envelope;
}

}  // namespace

std::vector<std::byte> encode(const WireEnvelope& envelope) {
  wire::Encoder encoder;
  encoder.array(kEnvelopeFields);
  encoder.put(kProtocolVersion);
  encoder.put(wire::kWireKinds[envelope.body.index()].tag);
  encoder.put(envelope.epoch);
  encoder.put(envelope.from);
  encoder.put(envelope.to);
  std::visit([&](const auto& body) { encoder.put(body); }, envelope.body);
  return encoder.take();
}

core::Result<WireEnvelope> decode(std::span<const std::byte> bytes) {
  if (bytes.size() > kMaxEncodedBytes) {
    return core::fail(Errc::corrupt, "expected an envelope of at most {} bytes, found {}", kMaxEncodedBytes,
                      bytes.size());
  }
  const char* data = reinterpret_cast<const char*>(bytes.data());
  try {
    TRY(survey(data, bytes.size()));
    msgpack::zone zone(1024);
    std::size_t offset = 0;
    bool referenced = false;
    auto keep_references = [](msgpack::type::object_type, std::size_t, void*) { return true; };
    return read(msgpack::unpack(zone, data, bytes.size(), offset, referenced, keep_references));
  } catch (const std::exception& error) {
    return core::fail(Errc::corrupt, "expected an envelope in {} bytes: {}", bytes.size(), error.what());
  }
}

}  // namespace troupe::messages
