#pragma once

#include <cstdint>
#include <string>

namespace troupe::messages {

/// Rank to Coordinator: store this (for rendezvous of collective groups; keys live as long as the epoch).
struct StoreSet {
  std::string key;
  std::string value;  ///< any bytes

  friend bool operator==(const StoreSet&, const StoreSet&) = default;
};

/// Rank to Coordinator: answer with StoreValue as soon as the key exists.
struct StoreGet {
  std::uint64_t request = 0;
  std::string key;

  friend bool operator==(const StoreGet&, const StoreGet&) = default;
};

struct StoreValue {
  std::uint64_t request = 0;
  std::string value;

  friend bool operator==(const StoreValue&, const StoreValue&) = default;
};

}  // namespace troupe::messages
