#include "core/interop/pickle_writer.hpp"

#include <bit>
#include <limits>

#include "core/errors.hpp"
#include "core/interop/pickle.hpp"
#include "core/interop/pickle_parts.hpp"

namespace troupe::core {

PickleWriter::PickleWriter(int protocol) : protocol_(protocol) {
  CHECK(protocol == 2 || protocol == 4, "pickles are written in protocol 2 or 4");
  put(PickleOpcode::proto);
  out_.push_back(static_cast<std::byte>(protocol));
}

void PickleWriter::put_number(std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out_.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void PickleWriter::integer(std::int64_t value) {
  if (value >= 0 && value < 0x100) {
    put(PickleOpcode::binint1);
    put_number(static_cast<std::uint64_t>(value), 1);
  } else if (value >= 0 && value < 0x10000) {
    put(PickleOpcode::binint2);
    put_number(static_cast<std::uint64_t>(value), 2);
  } else if (value >= std::numeric_limits<std::int32_t>::min() &&
             value <= std::numeric_limits<std::int32_t>::max()) {
    put(PickleOpcode::binint);
    put_number(static_cast<std::uint64_t>(value), 4);
  } else {
    std::size_t bytes = 5;
    while (bytes < 8 && value >> (8 * bytes - 1) != 0 && value >> (8 * bytes - 1) != -1) ++bytes;
    put(PickleOpcode::long1);
    put_number(bytes, 1);
    put_number(static_cast<std::uint64_t>(value), bytes);
  }
}

void PickleWriter::long_integer(std::span<const std::byte> digits) {
  CHECK(digits.size() < 0x100, "LONG1 has one byte for its length");
  put(PickleOpcode::long1);
  put_number(digits.size(), 1);
  out_.insert(out_.end(), digits.begin(), digits.end());
}

void PickleWriter::real(double value) {
  put(PickleOpcode::binfloat);
  put_number(__builtin_bswap64(std::bit_cast<std::uint64_t>(value)), 8);
}

void PickleWriter::put_text(std::string_view text) {
  if (protocol_ >= 4 && text.size() < 0x100) {
    put(PickleOpcode::short_binunicode);
    put_number(text.size(), 1);
  } else {
    CHECK(text.size() <= std::numeric_limits<std::uint32_t>::max(), "a text has less than 4 GiB");
    put(PickleOpcode::binunicode);
    put_number(text.size(), 4);
  }
  const auto bytes = std::as_bytes(std::span(text));
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void PickleWriter::text(std::string_view text) {
  const auto [place, is_new] = texts_.try_emplace(std::string(text), remembered_);
  if (!is_new) return recall(place->second);
  put_text(text);
  remember();
}

void PickleWriter::bytes(std::span<const std::byte> bytes) {
  if (protocol_ < 4) {
    global("_codecs", "encode");
    std::string latin;
    for (const std::byte byte : bytes) {
      const auto code = std::to_integer<unsigned>(byte);
      if (code >= 0x80) latin.push_back(static_cast<char>(0xc0 | (code >> 6)));
      latin.push_back(static_cast<char>(code < 0x80 ? code : 0x80 | (code & 0x3f)));
    }
    put_text(latin);
    text("latin1");
    tuple(2);
    return reduce();
  }
  CHECK(bytes.size() <= std::numeric_limits<std::uint32_t>::max(), "a value has less than 4 GiB");
  const bool is_short = bytes.size() < 0x100;
  put(is_short ? PickleOpcode::short_binbytes : PickleOpcode::binbytes);
  put_number(bytes.size(), is_short ? 1 : 4);
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  std::string both(module);
  both += '\n';
  both += name;
  if (const auto known = globals_.find(both); known != globals_.end()) return recall(known->second);
  // A line of protocol 2 cannot hold every name that protocol 4 can.
  if (protocol_ >= 4 || both.find('\n', module.size() + 1) != std::string::npos ||
      module.find('\n') != std::string_view::npos) {
    text(module);
    text(name);
    put(PickleOpcode::stack_global);
  } else {
    put(PickleOpcode::global);
    const auto bytes = std::as_bytes(std::span(both));
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    out_.push_back(std::byte{'\n'});
  }
  globals_.emplace(std::move(both), remember());
}

void PickleWriter::tuple(std::size_t size) {
  constexpr PickleOpcode kSmall[] = {PickleOpcode::empty_tuple, PickleOpcode::tuple1, PickleOpcode::tuple2,
                                     PickleOpcode::tuple3};
  put(size < std::size(kSmall) ? kSmall[size] : PickleOpcode::tuple);
}

std::uint32_t PickleWriter::remember() {
  if (protocol_ >= 4) {
    put(PickleOpcode::memoize);
  } else {
    const bool is_short = remembered_ < 0x100;
    put(is_short ? PickleOpcode::binput : PickleOpcode::long_binput);
    put_number(remembered_, is_short ? 1 : 4);
  }
  return remembered_++;
}

void PickleWriter::recall(std::uint32_t index) {
  const bool is_short = index < 0x100;
  put(is_short ? PickleOpcode::binget : PickleOpcode::long_binget);
  put_number(index, is_short ? 1 : 4);
}

std::vector<std::byte> PickleWriter::finish() {
  put(PickleOpcode::stop);
  return std::move(out_);
}

namespace {

/// Writes the nodes of a document; recursion is as deep as the document, whose depth is limited.
class GraphWriter {
 public:
  GraphWriter(const PickleDocument& document, int protocol)
      : writer_(protocol), remembered_(document.node_count(), kNoPickleNode) {
    write(document.root());
  }
  std::vector<std::byte> finish() { return writer_.finish(); }

 private:
  void write(const PickleNode& node);
  void write_atom(const PickleNode& node);
  void write_tuple(const PickleNode& node);
  void write_object(const PickleNode& node);
  void write_items(const PickleNode& items);

  PickleWriter writer_;
  std::vector<std::uint32_t> remembered_;
};

void GraphWriter::write(const PickleNode& node) {
  if (remembered_[node.id()] != kNoPickleNode) return writer_.recall(remembered_[node.id()]);
  switch (node.kind()) {
    case PickleKind::list:
      writer_.empty_list();
      break;
    case PickleKind::dict:
      writer_.empty_dict();
      break;
    case PickleKind::set:
      writer_.empty_set();
      break;
    case PickleKind::tuple:
      write_tuple(node);
      break;
    case PickleKind::object:
      return write_object(node);
    case PickleKind::persistent:
      write(*node.persistent_id());
      writer_.persistent_id();
      break;
    default:
      return write_atom(node);
  }
  if (node.kind() == PickleKind::tuple && node.size() == 0) return;
  remembered_[node.id()] = writer_.remember();
  if (node.kind() != PickleKind::tuple && node.kind() != PickleKind::persistent) write_items(node);
}

void GraphWriter::write_atom(const PickleNode& node) {
  switch (node.kind()) {
    case PickleKind::boolean:
      return writer_.boolean(*node.as_boolean());
    case PickleKind::integer:
      return writer_.integer(*node.as_integer());
    case PickleKind::long_integer:
      return writer_.long_integer(*node.as_bytes());
    case PickleKind::real:
      return writer_.real(*node.as_real());
    case PickleKind::text:
      return writer_.text(*node.as_text());
    case PickleKind::bytes:
      return writer_.bytes(*node.as_bytes());
    case PickleKind::global:
      return writer_.global(node.module(), node.name());
    default:
      return writer_.none();
  }
}

void GraphWriter::write_tuple(const PickleNode& node) {
  if (node.size() > 3) writer_.mark();
  for (std::size_t i = 0; i < node.size(); ++i) write(node.item(i));
  writer_.tuple(node.size());
}

void GraphWriter::write_object(const PickleNode& node) {
  write(*node.callable());
  write(*node.arguments());
  if (node.is_new()) {
    writer_.new_object();
  } else {
    writer_.reduce();
  }
  remembered_[node.id()] = writer_.remember();
  if (const auto items = node.items()) write_items(*items);
  if (const auto state = node.state()) {
    write(*state);
    writer_.build();
  }
}

void GraphWriter::write_items(const PickleNode& items) {
  const std::size_t size = items.size();
  if (size == 0) return;
  writer_.mark();
  for (std::size_t i = 0; i < size; ++i) {
    write(items.kind() == PickleKind::dict ? items.key(i) : items.item(i));
    if (items.kind() == PickleKind::dict) write(items.value(i));
  }
  if (items.kind() == PickleKind::dict) return writer_.set_all();
  if (items.kind() == PickleKind::list) return writer_.append_all();
  writer_.add_all();
}

}  // namespace

std::vector<std::byte> encode(const PickleDocument& document, int protocol) {
  return GraphWriter(document, protocol).finish();
}

}  // namespace troupe::core
