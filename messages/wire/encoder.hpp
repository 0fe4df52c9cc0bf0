#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <msgpack.hpp>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/ids.hpp"
#include "messages/wire/fields.hpp"

namespace troupe::messages::wire {

/// Writes values as MessagePack.
class Encoder {
 public:
  void array(std::size_t count) { packer_.pack_array(static_cast<std::uint32_t>(count)); }

  void put(bool value) { value ? packer_.pack_true() : packer_.pack_false(); }
  void put(std::integral auto value) { packer_.pack(value); }
  void put(const std::string& text) {
    packer_.pack_bin(static_cast<std::uint32_t>(text.size()));
    packer_.pack_bin_body(text.data(), static_cast<std::uint32_t>(text.size()));
  }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void put(Enum value) { put(static_cast<std::underlying_type_t<Enum>>(value)); }
  template <class Tag, class Integer>
  void put(core::Id<Tag, Integer> id) {
    put(id.value);
  }
  template <class T>
  void put(const std::vector<T>& items) {
    array(items.size());
    for (const T& item : items) put(item);
  }
  template <class Aggregate>
  requires std::is_aggregate_v<Aggregate>
  void put(const Aggregate& value) {
    auto members = fields(value);
    array(std::tuple_size_v<decltype(members)>);
    std::apply([this](const auto&... member) { (put(member), ...); }, members);
  }

  std::vector<std::byte> take() {
    auto* first = reinterpret_cast<const std::byte*>(buffer_.data());
    return {first, first + buffer_.size()};
  }

 private:
  msgpack::sbuffer buffer_{256};
  msgpack::packer<msgpack::sbuffer> packer_{buffer_};
};

}  // namespace troupe::messages::wire
