#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/interop/pickle_opcodes.hpp"

namespace troupe::core {

/// Writes a pickle opcode by opcode, in protocol 2 (inside tensor archives) or 4 (metadata of checkpoints).
/// Callers keep track of the machine's stack: containers are filled from the values above their mark. Texts
/// and globals are memoised and written once, as Python does with objects that it sees again.
class PickleWriter {
 public:
  explicit PickleWriter(int protocol);

  void none() { put(PickleOpcode::none); }
  void boolean(bool value) { put(value ? PickleOpcode::newtrue : PickleOpcode::newfalse); }
  void integer(std::int64_t value);
  /// Little-endian two's complement, at most 255 bytes.
  void long_integer(std::span<const std::byte> digits);
  void real(double value);
  /// UTF-8.
  void text(std::string_view text);
  /// Protocol 2 has no bytes; they become a call of _codecs.encode, as in Python.
  void bytes(std::span<const std::byte> bytes);
  void global(std::string_view module, std::string_view name);

  void empty_list() { put(PickleOpcode::empty_list); }
  void empty_dict() { put(PickleOpcode::empty_dict); }
  void empty_set() { put(PickleOpcode::empty_set); }
  void mark() { put(PickleOpcode::mark); }
  /// A tuple of the top `size` values. More than 3 need a mark below them.
  void tuple(std::size_t size);
  /// Moves the values above the mark into the list, dict or set below it.
  void append_all() { put(PickleOpcode::appends); }
  void set_all() { put(PickleOpcode::setitems); }
  void add_all() { put(PickleOpcode::additems); }

  /// Turns callable and arguments into an object; its state is added afterwards.
  void reduce() { put(PickleOpcode::reduce); }
  void new_object() { put(PickleOpcode::newobj); }
  void build() { put(PickleOpcode::build); }
  /// Turns the value on top into a persistent id.
  void persistent_id() { put(PickleOpcode::binpersid); }

  /// Memoises the value on top and returns the number that recalls it.
  std::uint32_t remember();
  void recall(std::uint32_t index);

  /// Ends with STOP. The writer must not be used afterwards.
  std::vector<std::byte> finish();

 private:
  void put(PickleOpcode op) { out_.push_back(static_cast<std::byte>(op)); }
  void put_number(std::uint64_t value, std::size_t bytes);
  void put_text(std::string_view text);

  int protocol_;
  std::vector<std::byte> out_;
  std::uint32_t remembered_ = 0;
  std::unordered_map<std::string, std::uint32_t> texts_;
  std::unordered_map<std::string, std::uint32_t> globals_;
};

}  // namespace troupe::core
