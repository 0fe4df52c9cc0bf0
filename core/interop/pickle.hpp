#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

namespace troupe::core {

/// Limits on what a pickle may cost its reader. Anything beyond a limit is refused, and so is more than one
/// node per two bytes (plus 4096): Python memoises what it writes, so no node takes less. This bounds the
/// memory of a document to 16 times the size of its pickle.
struct PickleLimits {
  std::size_t bytes = std::size_t{1} << 32;
  std::size_t nodes = std::size_t{1} << 27;
  std::size_t memo = std::size_t{1} << 27;
  /// Nesting of containers and objects; less than 254.
  std::size_t depth = 128;
};

enum class PickleKind : std::uint8_t {
  none,
  boolean,
  integer,
  long_integer,  ///< more than 64 bits; its bytes are kept
  real,
  text,
  bytes,
  list,
  tuple,
  dict,
  set,
  global,      ///< a class or function, by module and name; never looked up
  object,      ///< callable, arguments, items, state; never called
  persistent,  ///< the id of something outside the pickle
};

/// "none", "boolean", "integer", ...
std::string_view name_of(PickleKind kind) noexcept;

class PickleDocument;

/// One node of a document, which it must not outlive. A query that does not fit the kind returns nothing, so
/// a reader need not trust the shape of a document.
class PickleNode {
 public:
  PickleKind kind() const;
  /// Distinct for two places in the document, even if they hold equal values.
  std::uint32_t id() const { return id_; }

  std::optional<bool> as_boolean() const;
  std::optional<std::int64_t> as_integer() const;
  std::optional<double> as_real() const;
  std::optional<std::string_view> as_text() const;
  /// For bytes, and for a long integer: little-endian two's complement.
  std::optional<std::span<const std::byte>> as_bytes() const;

  /// The number of items of a list, tuple or set, or of entries of a dict; 0 for anything else.
  std::size_t size() const;
  /// index < size(); an item of a list, tuple or set.
  PickleNode item(std::size_t index) const;
  /// index < size(); an entry of a dict.
  PickleNode key(std::size_t index) const;
  PickleNode value(std::size_t index) const;
  /// The last entry of a dict with this text as its key.
  std::optional<PickleNode> find(std::string_view key) const;

  /// For a global; empty for anything else.
  std::string_view module() const;
  std::string_view name() const;
  bool is_global(std::string_view module, std::string_view name) const;

  /// The parts of an object. Arguments are a tuple; items are a list or a dict.
  std::optional<PickleNode> callable() const;
  std::optional<PickleNode> arguments() const;
  std::optional<PickleNode> items() const;
  std::optional<PickleNode> state() const;
  /// Created by NEWOBJ (`callable.__new__`), not by REDUCE (`callable()`).
  bool is_new() const;
  /// Whether this is an object made from this global.
  bool is_object_of(std::string_view module, std::string_view name) const;

  /// The value of a persistent id.
  std::optional<PickleNode> persistent_id() const;

 private:
  friend class PickleDocument;
  PickleNode(const PickleDocument* document, std::uint32_t id) : document_(document), id_(id) {}
  std::optional<PickleNode> part(PickleKind kind, std::size_t index) const;

  const PickleDocument* document_;
  std::uint32_t id_;
};

/// A pickle as data: a directed acyclic graph whose nodes may be shared. Texts and bytes refer to the input,
/// which must outlive the document. Walking the graph as if it were a tree can take time exponential in its
/// size, so such a walk needs a budget.
class PickleDocument {
 public:
  /// Runs the pickle machine for the opcodes that checkpoints use, of protocols 2 to 5: containers, numbers,
  /// texts, bytes, memo, globals, objects. Errc::corrupt names the position and the opcode of anything else,
  /// of truncated input, of text that is not UTF-8, of a cycle, and of anything that exceeds the limits.
  static Result<PickleDocument> parse(std::span<const std::byte> bytes, const PickleLimits& limits = {});

  PickleNode root() const { return {this, root_}; }
  /// The number of nodes created, including discarded ones; ids are below it.
  std::size_t node_count() const { return slots_.size(); }

 private:
  friend class PickleNode;
  friend class PickleMachine;

  /// `payload` is the value itself, a position in the input or, for a node with parts, their start in parts_.
  struct Slot {
    PickleKind kind = PickleKind::none;
    bool is_new = false;
    std::uint32_t size = 0;
    std::uint64_t payload = 0;
  };
  /// Deques, because they grow without copying everything.
  using Parts = std::deque<std::uint32_t>;

  /// The ids of a node's children; for a dict each value follows its key.
  class Children {
   public:
    Children() = default;
    Children(const Parts& parts, std::uint64_t begin, std::size_t size)
        : parts_(&parts), begin_(begin), size_(size) {}
    std::size_t size() const { return size_; }
    std::uint32_t operator[](std::size_t index) const { return (*parts_)[begin_ + index]; }

   private:
    const Parts* parts_ = nullptr;
    std::uint64_t begin_ = 0;
    std::size_t size_ = 0;
  };

  Children children(std::uint32_t id) const;
  Result<void> check_graph(std::size_t depth_limit) const;

  std::span<const std::byte> input_;
  std::deque<Slot> slots_;
  Parts parts_;
  std::uint32_t root_ = 0;
};

/// The same graph as bytes; shared nodes remain shared.
std::vector<std::byte> encode(const PickleDocument& document, int protocol = 4);

/// "module.name" of a global or of an object's callable, otherwise the name of the kind. For error messages,
/// so long names are cut.
std::string class_name(const PickleNode& node);

}  // namespace troupe::core
