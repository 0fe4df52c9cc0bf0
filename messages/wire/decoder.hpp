#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <msgpack.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/ids.hpp"
#include "core/result.hpp"
#include "messages/address.hpp"
#include "messages/calls.hpp"
#include "messages/wire/fields.hpp"

namespace troupe::messages::wire {

/// The last enumerator of a type in messages between processes.
constexpr Role last_of(Role) {
  return Role::replica_coordinator;
}
constexpr Call last_of(Call) {
  return static_cast<Call>(kCallNames.size() - 1);
}
constexpr core::Errc last_of(core::Errc) {
  return core::Errc::internal;
}

inline std::string_view type_of(const msgpack::object& object) {
  switch (object.type) {
    case msgpack::type::BOOLEAN:
      return "a boolean";
    case msgpack::type::POSITIVE_INTEGER:
    case msgpack::type::NEGATIVE_INTEGER:
      return "an integer";
    case msgpack::type::FLOAT32:
    case msgpack::type::FLOAT64:
      return "a floating number";
    case msgpack::type::BIN:
      return "bytes";
    case msgpack::type::ARRAY:
      return "an array";
    default:
      return "a type that messages do not use";
  }
}

/// Reads values from parsed MessagePack. The first unexpected item stops it and is remembered; the values
/// read until then must not be used.
class Decoder {
 public:
  bool get(const msgpack::object& from, bool& out) {
    if (from.type != msgpack::type::BOOLEAN) return wrong_type("a boolean", from);
    out = from.via.boolean;
    return true;
  }

  template <std::integral T>
  bool get(const msgpack::object& from, T& out) {
    if (from.type == msgpack::type::POSITIVE_INTEGER) {
      if (!std::in_range<T>(from.via.u64)) return out_of_range<T>(from.via.u64);
      out = static_cast<T>(from.via.u64);
    } else if (from.type == msgpack::type::NEGATIVE_INTEGER) {
      if (!std::in_range<T>(from.via.i64)) return out_of_range<T>(from.via.i64);
      out = static_cast<T>(from.via.i64);
    } else {
      return wrong_type("an integer", from);
    }
    return true;
  }

  bool get(const msgpack::object& from, std::string& out) {
    if (from.type != msgpack::type::BIN) return wrong_type("bytes", from);
    out.assign(from.via.bin.ptr, from.via.bin.size);
    return true;
  }

  template <class Enum>
  requires std::is_enum_v<Enum>
  bool get(const msgpack::object& from, Enum& out) {
    std::uint64_t number = 0;
    if (!get(from, number)) return false;
    auto last = static_cast<std::uint64_t>(last_of(Enum{}));
    if (number > last) return stop("expected a number from 0 to {}, found {}", last, number);
    out = static_cast<Enum>(number);
    return true;
  }

  template <class Tag, class Integer>
  bool get(const msgpack::object& from, core::Id<Tag, Integer>& out) {
    return get(from, out.value);
  }

  template <class T>
  bool get(const msgpack::object& from, std::vector<T>& out) {
    if (from.type != msgpack::type::ARRAY) return wrong_type("an array", from);
    out.reserve(from.via.array.size);
    for (std::uint32_t i = 0; i < from.via.array.size; ++i) {
      if (!get(from.via.array.ptr[i], out.emplace_back())) return at(i);
    }
    return true;
  }

  template <class Aggregate>
  requires std::is_aggregate_v<Aggregate>
  bool get(const msgpack::object& from, Aggregate& out) {
    auto members = fields(out);
    constexpr std::size_t kCount = std::tuple_size_v<decltype(members)>;
    if (from.type != msgpack::type::ARRAY) return wrong_type("an array", from);
    if (from.via.array.size != kCount) {
      return stop("expected {} members, found {}", kCount, from.via.array.size);
    }
    std::uint32_t i = 0;
    auto next = [&](auto& member) { return get(from.via.array.ptr[i], member) ? (++i, true) : at(i); };
    return std::apply([&](auto&... member) { return (next(member) && ...); }, members);
  }

  /// Records the place of `complaint`, from the outside in. Always false, so that callers can return it.
  bool at(std::size_t index) {
    path_ = fmt::format("[{}]{}", index, path_);
    return false;
  }
  template <class... Args>
  bool stop(fmt::format_string<Args...> format, Args&&... args) {
    complaint_ = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }

  const std::string& path() const { return path_; }
  const std::string& complaint() const { return complaint_; }

 private:
  bool wrong_type(std::string_view expected, const msgpack::object& found) {
    return stop("expected {}, found {}", expected, type_of(found));
  }
  template <class T>
  bool out_of_range(auto found) {
    return stop("expected an integer from {} to {}, found {}", std::numeric_limits<T>::min(),
                std::numeric_limits<T>::max(), found);
  }

  std::string path_;
  std::string complaint_;
};

}  // namespace troupe::messages::wire
