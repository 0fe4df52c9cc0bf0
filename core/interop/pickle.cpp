#include "core/interop/pickle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/enum_names.hpp"
#include "core/errors.hpp"
#include "core/interop/pickle_parts.hpp"
#include "core/utf8.hpp"

namespace troupe::core {
namespace {

constexpr auto kKindNames =
    enum_names<PickleKind>("none", "boolean", "integer", "long integer", "real", "text", "bytes", "list",
                           "tuple", "dict", "set", "global", "object", "persistent");

}  // namespace

std::string_view name_of(PickleKind kind) noexcept {
  return kKindNames[kind];
}

PickleDocument::Children PickleDocument::children(std::uint32_t id) const {
  const Slot& slot = slots_[id];
  switch (slot.kind) {
    case PickleKind::list:
    case PickleKind::set:
    case PickleKind::dict:
      return {parts_, slot.payload & kBeginMask, slot.size};
    case PickleKind::tuple:
    case PickleKind::object:
    case PickleKind::persistent:
      return {parts_, slot.payload, slot.size};
    default:
      return {};
  }
}

Result<void> PickleDocument::check_graph(std::size_t depth_limit) const {
  constexpr std::uint8_t kUnseen = 0;
  constexpr std::uint8_t kOpen = 255;
  CHECK(depth_limit + 1 < kOpen, "a byte counts the levels");
  // The number of levels of each node's subgraph, once known.
  std::vector<std::uint8_t> levels(slots_.size(), kUnseen);
  struct Visit {
    std::uint32_t id;
    std::uint32_t next;
    std::uint8_t levels;
  };
  std::vector<Visit> path{{root_, 0, 1}};
  levels[root_] = kOpen;
  while (!path.empty()) {
    Visit& visit = path.back();
    const auto below = children(visit.id);
    if (visit.next == below.size()) {
      levels[visit.id] = visit.levels;
      const auto known = static_cast<std::uint8_t>(visit.levels + 1);
      path.pop_back();
      if (!path.empty()) path.back().levels = std::max(path.back().levels, known);
    } else {
      const std::uint32_t child = below[visit.next++];
      if (child == kNoPickleNode) continue;
      if (levels[child] == kOpen) {
        return fail(Errc::corrupt, "pickle: one {} contains itself, which no checkpoint does",
                    name_of(slots_[child].kind));
      }
      if (levels[child] == kUnseen) {
        levels[child] = kOpen;
        path.push_back({child, 0, 1});
      } else {
        visit.levels = std::max(visit.levels, static_cast<std::uint8_t>(levels[child] + 1));
      }
    }
    if (path.size() > depth_limit || (!path.empty() && path.back().levels > depth_limit)) {
      return fail(Errc::corrupt, "pickle: more than {} levels within each other", depth_limit);
    }
  }
  return {};
}

PickleKind PickleNode::kind() const {
  return document_->slots_[id_].kind;
}

std::optional<bool> PickleNode::as_boolean() const {
  if (kind() != PickleKind::boolean) return std::nullopt;
  return document_->slots_[id_].payload != 0;
}

std::optional<std::int64_t> PickleNode::as_integer() const {
  if (kind() != PickleKind::integer) return std::nullopt;
  return std::bit_cast<std::int64_t>(document_->slots_[id_].payload);
}

std::optional<double> PickleNode::as_real() const {
  if (kind() != PickleKind::real) return std::nullopt;
  return std::bit_cast<double>(document_->slots_[id_].payload);
}

std::optional<std::string_view> PickleNode::as_text() const {
  if (kind() != PickleKind::text) return std::nullopt;
  const auto& slot = document_->slots_[id_];
  return std::string_view(reinterpret_cast<const char*>(document_->input_.data()) + slot.payload, slot.size);
}

std::optional<std::span<const std::byte>> PickleNode::as_bytes() const {
  if (kind() != PickleKind::bytes && kind() != PickleKind::long_integer) return std::nullopt;
  const auto& slot = document_->slots_[id_];
  return document_->input_.subspan(slot.payload, slot.size);
}

std::size_t PickleNode::size() const {
  switch (kind()) {
    case PickleKind::list:
    case PickleKind::tuple:
    case PickleKind::set:
      return document_->children(id_).size();
    case PickleKind::dict:
      return document_->children(id_).size() / 2;
    default:
      return 0;
  }
}

PickleNode PickleNode::item(std::size_t index) const {
  CHECK(kind() != PickleKind::dict && index < size(), "an item lies in its list, tuple or set");
  return {document_, document_->children(id_)[index]};
}

PickleNode PickleNode::key(std::size_t index) const {
  CHECK(kind() == PickleKind::dict && index < size(), "a key lies in its dict");
  return {document_, document_->children(id_)[2 * index]};
}

PickleNode PickleNode::value(std::size_t index) const {
  CHECK(kind() == PickleKind::dict && index < size(), "a value lies in its dict");
  return {document_, document_->children(id_)[2 * index + 1]};
}

std::optional<PickleNode> PickleNode::find(std::string_view name) const {
  if (kind() != PickleKind::dict) return std::nullopt;
  for (std::size_t i = size(); i-- > 0;) {
    if (key(i).as_text() == name) return value(i);
  }
  return std::nullopt;
}

std::optional<PickleNode> PickleNode::part(PickleKind expected, std::size_t index) const {
  const auto& slot = document_->slots_[id_];
  if (slot.kind != expected || index >= slot.size) return std::nullopt;
  const std::uint32_t id = document_->parts_[slot.payload + index];
  if (id == kNoPickleNode) return std::nullopt;
  return PickleNode{document_, id};
}

std::string_view PickleNode::module() const {
  const auto node = part(PickleKind::global, 0);
  return node ? node->as_text().value_or("") : "";
}

std::string_view PickleNode::name() const {
  const auto node = part(PickleKind::global, 1);
  return node ? node->as_text().value_or("") : "";
}

bool PickleNode::is_global(std::string_view wanted_module, std::string_view wanted_name) const {
  return kind() == PickleKind::global && name() == wanted_name && module() == wanted_module;
}

std::optional<PickleNode> PickleNode::callable() const {
  return part(PickleKind::object, kCallablePart);
}

std::optional<PickleNode> PickleNode::arguments() const {
  return part(PickleKind::object, kArgumentsPart);
}

std::optional<PickleNode> PickleNode::items() const {
  return part(PickleKind::object, kItemsPart);
}

std::optional<PickleNode> PickleNode::state() const {
  return part(PickleKind::object, kStatePart);
}

bool PickleNode::is_new() const {
  return document_->slots_[id_].is_new;
}

bool PickleNode::is_object_of(std::string_view wanted_module, std::string_view wanted_name) const {
  const auto called = callable();
  return called && called->is_global(wanted_module, wanted_name);
}

std::optional<PickleNode> PickleNode::persistent_id() const {
  return part(PickleKind::persistent, 0);
}

std::string class_name(const PickleNode& node) {
  const PickleNode named = node.callable().value_or(node);
  if (named.kind() != PickleKind::global) return std::string(name_of(node.kind()));
  return fmt::format("{}.{}", beginning_of(named.module()), beginning_of(named.name()));
}

}  // namespace troupe::core
