#include "actors/session/local_search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/checkpoint/manifest.hpp"
#include "core/checkpoint/values_text.hpp"
#include "core/errors.hpp"
#include "core/values/value.hpp"

namespace troupe::actors {

using core::Errc;
using core::Result;
using core::Value;

namespace {

/// Further notes would repeat the same for other ranks.
constexpr std::size_t kMaxNotes = 8;

/// In texts: a copy in the holder's own storage.
constexpr core::Rank kOwn{-1};

Value number(std::uint64_t value) {
  return core::hex64(value);
}

Value rank(core::Rank rank) {
  return static_cast<std::int64_t>(rank.value);
}

Value strings(const std::vector<std::string>& texts) {
  Value::List list;
  for (const auto& text : texts) list.emplace_back(text);
  return list;
}

/// Takes values out of lists; remembers the first that is not as expected.
class Items {
 public:
  explicit Items(const Value* value) : items_(value != nullptr ? value->as_list() : nullptr) {
    is_good_ = items_ != nullptr;
  }
  bool is_good() const { return is_good_; }
  bool more() const { return is_good_ && next_ < items_->size(); }

  const Value* take() {
    if (!more()) is_good_ = false;
    return is_good_ ? &(*items_)[next_++] : nullptr;
  }
  std::int64_t integer() {
    const auto* value = take();
    const auto found = value != nullptr ? value->as_int() : std::nullopt;
    is_good_ = is_good_ && found;
    return found.value_or(0);
  }
  core::Rank rank() { return {static_cast<std::int32_t>(integer())}; }
  std::string string() {
    const auto* value = take();
    const auto* found = value != nullptr ? value->as_string() : nullptr;
    is_good_ = is_good_ && found != nullptr;
    return is_good_ ? *found : std::string();
  }
  std::uint64_t number() {
    const auto digits = string();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    is_good_ = is_good_ && error == std::errc{} && end == digits.data() + digits.size();
    return value;
  }
  core::CopyName name() {
    const core::StepCount step{integer()};
    return {step, number()};
  }
  void expect(bool good) { is_good_ = is_good_ && good; }

 private:
  const Value::List* items_;
  std::size_t next_ = 0;
  bool is_good_ = false;
};

std::vector<std::string> read_strings(Items& outer) {
  std::vector<std::string> texts;
  Items items(outer.take());
  while (items.more()) texts.push_back(items.string());
  outer.expect(items.is_good());
  return texts;
}

tl::unexpected<core::Error> altered(std::string_view what) {
  return core::fail(Errc::corrupt, "{} arrived altered", what);
}

}  // namespace

Result<std::string> text_of(const Holding& holding) {
  Value::List copies;
  for (const auto& copy : holding.found.held) {
    copies.emplace_back(Value::List{copy.name.step.value, number(copy.name.save), rank(copy.owner),
                                    number(copy.bytes), static_cast<std::int64_t>(copy.world.value),
                                    number(copy.layout), rank(copy.beside.value_or(kOwn))});
  }
  return core::value_text(
      Value::List{std::move(copies), strings(holding.found.passed_over), number(holding.wants)});
}

Result<Holding> parse_holding(std::string_view text) {
  const auto value = TRY(core::parse_value(text));
  Holding holding;
  auto& found = holding.found;
  Items items(&value);
  Items copies(items.take());
  while (copies.more()) {
    Items copy(copies.take());
    const auto name = copy.name();
    core::HeldCopy held{name, copy.rank(), copy.number(), {}, 0, {}};
    held.world = {static_cast<std::int32_t>(copy.integer())};
    held.layout = copy.number();
    if (const auto storage = copy.rank(); storage != kOwn) held.beside = storage;
    found.held.push_back(held);
    copies.expect(copy.is_good() && !copy.more());
  }
  items.expect(copies.is_good());
  found.passed_over = read_strings(items);
  holding.wants = items.number();
  if (!items.is_good() || items.more()) return altered("what a rank holds of local copies");
  return holding;
}

Result<std::string> text_of(const RestoreChoice& choice) {
  Value::List transfers;
  for (const auto& transfer : choice.transfers) {
    Value::List to;
    for (auto member : transfer.to) to.push_back(rank(member));
    transfers.emplace_back(
        Value::List{rank(transfer.owner), rank(transfer.from), number(transfer.bytes), std::move(to)});
  }
  Value::List local;
  if (choice.local) local = {choice.local->step.value, number(choice.local->save)};
  Value::List givers;
  for (const auto& giver : choice.givers)
    givers.emplace_back(Value::List{rank(giver.from), rank(giver.storage), number(giver.layout)});
  Value::List wants;
  for (const auto layout : choice.wants) wants.emplace_back(number(layout));
  return core::value_text(Value::List{choice.checkpoint, std::move(local), std::move(transfers),
                                      std::move(givers), std::move(wants), strings(choice.notes)});
}

Result<RestoreChoice> parse_choice(std::string_view text) {
  const auto value = TRY(core::parse_value(text));
  RestoreChoice choice;
  Items items(&value);
  choice.checkpoint = items.string();
  Items local(items.take());
  if (local.more()) choice.local = local.name();
  items.expect(local.is_good());
  Items transfers(items.take());
  while (transfers.more()) {
    Items fields(transfers.take());
    core::CopyTransfer transfer;
    transfer.owner = fields.rank();
    transfer.from = fields.rank();
    transfer.bytes = fields.number();
    Items to(fields.take());
    while (to.more()) transfer.to.push_back(to.rank());
    transfers.expect(fields.is_good() && to.is_good());
    choice.transfers.push_back(std::move(transfer));
  }
  items.expect(transfers.is_good());
  Items givers(items.take());
  while (givers.more()) {
    Items fields(givers.take());
    const auto from = fields.rank();
    const auto storage = fields.rank();
    choice.givers.push_back({from, storage, fields.number()});
    givers.expect(fields.is_good());
  }
  Items wants(items.take());
  while (wants.more()) choice.wants.push_back(wants.number());
  items.expect(givers.is_good() && wants.is_good());
  choice.notes = read_strings(items);
  if (!items.is_good() || items.more()) return altered("what is to be restored");
  return choice;
}

void LocalSearch::note(std::string text) {
  if (noted_.insert(text).second) notes_.push_back(std::move(text));
}

void LocalSearch::hear(std::vector<Holding> all) {
  core::Holdings holdings;
  std::vector<std::string> unusable;
  wants_.clear();
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (const auto& reason : all[rank].found.passed_over)
      unusable.push_back(fmt::format("rank {}: {}", rank, reason));
    wants_.push_back(all[rank].wants);
    auto& held = holdings.emplace_back(std::move(all[rank].found.held));
    std::erase_if(held, [&](const core::HeldCopy& copy) { return given_up_.contains(copy.name); });
  }
  const bool same_again = failed_ && holdings == holdings_;
  if (same_again) {
    given_up_.insert(*failed_);
    for (auto& held : holdings)
      std::erase_if(held, [&](const core::HeldCopy& copy) { return copy.name == *failed_; });
  }
  failed_.reset();
  holdings_ = std::move(holdings);
  auto latest = core::find_latest(holdings_, cliques_, wants_);
  best_ = latest.name;
  givers_ = std::move(latest.givers);
  for (auto& reason : latest.passed_over) note(std::move(reason));
  if (unusable.size() > kMaxNotes) unusable.resize(kMaxNotes);
  for (auto& reason : unusable) note(std::move(reason));
}

Result<RestoreChoice> LocalSearch::propose() const {
  RestoreChoice choice;
  choice.local = best_;
  if (!givers_.empty()) {
    choice.givers = givers_;
    choice.wants = wants_;
    return choice;
  }
  for (const auto& clique : cliques_) {
    for (auto& transfer : TRY(core::plan_retrieval(*best_, holdings_, clique)))
      choice.transfers.push_back(std::move(transfer));
  }
  return choice;
}

}  // namespace troupe::actors
