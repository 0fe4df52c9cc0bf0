#include "gpu/collective/tcp/agreement.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/errors.hpp"

namespace troupe::gpu {
namespace {

constexpr std::uint64_t kPhase = 0xff;

bool has_parts(OperationKind kind) {
  return kind == OperationKind::reduce_scatter || kind == OperationKind::all_gather;
}

}  // namespace

Agreement::Agreement(std::vector<core::Rank> members, int self)
    : members_(std::move(members)), self_(static_cast<std::size_t>(self)), heard_(members_.size()) {
  collectives_.ahead.resize(members_.size());
  messages_.resize(members_.size());
  for (Series& series : messages_) series.ahead.resize(members_.size());
}

PartCountsView Agreement::counts_of(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::reduce_scatter:
    case OperationKind::all_to_all:
      return operation.output_counts;
    case OperationKind::all_gather:
      return operation.input_counts;
    default:
      return {};
  }
}

Agreement::Words Agreement::words_of(const Operation& operation) {
  const Signature signature = gpu::signature_of(operation);
  Words words{.kind = signature.kind};
  if (words.kind == OperationKind::barrier) return words;
  words.dtype = signature.dtype;
  words.elements = signature.elements;
  if (reduces(words.kind)) words.reduce = signature.reduce;
  if (words.kind == OperationKind::broadcast) words.peer = static_cast<std::uint16_t>(signature.peer);
  if (!has_parts(words.kind)) return words;
  const auto counts = counts_of(operation);
  words.has_counts = !counts.is_even();
  if (!words.has_counts) words.elements = counts[0];
  return words;
}

std::string Agreement::words_to(int peer, const Operation& operation) {
  Words words = words_of(operation);
  if (words.kind == OperationKind::all_to_all)
    words.elements = operation.input_counts[static_cast<std::size_t>(peer)];
  std::string text = text_of(words);
  if (!words.has_counts) return text;
  const auto counts = counts_of(operation).each();
  text.append(reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof counts[0]);
  return text;
}

std::string Agreement::text_of(const Words& words) {
  std::string text(kWordsBytes, '\0');
  text[0] = static_cast<char>(words.kind);
  text[1] = static_cast<char>(words.dtype);
  text[2] = static_cast<char>(words.reduce);
  text[3] = static_cast<char>(words.has_counts);
  std::memcpy(&text[4], &words.peer, sizeof words.peer);
  std::memcpy(&text[6], &words.elements, sizeof words.elements);
  return text;
}

std::optional<Agreement::Words> Agreement::read_words(std::string_view text) {
  if (text.size() < kWordsBytes) return std::nullopt;
  const auto number = [&](std::size_t at) { return static_cast<std::uint8_t>(text[at]); };
  if (number(0) > static_cast<std::uint8_t>(OperationKind::barrier) ||
      number(1) > static_cast<std::uint8_t>(core::DType::boolean) ||
      number(2) > static_cast<std::uint8_t>(ReduceOp::bit_xor) || number(3) > 1)
    return std::nullopt;
  Words words{static_cast<OperationKind>(number(0)), static_cast<core::DType>(number(1)),
              static_cast<ReduceOp>(number(2)), number(3) == 1};
  std::memcpy(&words.peer, &text[4], sizeof words.peer);
  std::memcpy(&words.elements, &text[6], sizeof words.elements);
  return words;
}

void Agreement::begin(std::uint64_t slot, const Operation& operation) {
  if (operation.kind == OperationKind::send) return;
  const bool is_message = operation.kind == OperationKind::receive;
  Series& series = is_message ? messages_[static_cast<std::size_t>(operation.peer)] : collectives_;
  slot &= ~kPhase;
  Said& own = place_in(series, slot);
  own.slot = slot;
  own.words = words_of(operation);
  const bool keeps_counts = own.words.has_counts || operation.kind == OperationKind::all_to_all;
  own.counts = keeps_counts ? counts_of(operation).each() : std::vector<std::size_t>();
  series.last = slot;
  for (std::size_t peer = 0; peer < series.ahead.size(); ++peer) {
    auto& ahead = series.ahead[peer];
    if (ahead.empty() || ahead.front().slot != slot) continue;
    const Said theirs = std::move(ahead.front());
    ahead.pop_front();
    compare(static_cast<int>(peer), theirs, own);
  }
}

bool Agreement::hear(int peer, std::uint64_t slot, std::string_view text) {
  const auto words = read_words(text);
  if (!words) return false;
  text.remove_prefix(kWordsBytes);
  Said said{.slot = slot & ~kPhase, .words = *words, .counts = {}};
  const std::size_t counts = words->has_counts ? members_.size() : 0;
  if (text.size() != counts * sizeof(std::size_t)) return false;
  said.counts.resize(counts);
  if (counts > 0) std::memcpy(said.counts.data(), text.data(), text.size());

  const auto who = static_cast<std::size_t>(peer);
  const bool is_message = said.words.kind == OperationKind::send;
  Series& series = is_message ? messages_[who] : collectives_;
  if (said.slot > series.last) {
    series.ahead[who].push_back(std::move(said));
    return true;
  }
  if (const Said& own = place_in(series, said.slot); own.slot == said.slot) compare(peer, said, own);
  return true;
}

void Agreement::compare(int peer, const Said& theirs, const Said& own) {
  if (found_) return;
  if (own.words.kind == OperationKind::receive) {
    found_ = find_in_message(peer, theirs, own);
    return;
  }
  heard_[static_cast<std::size_t>(peer)] = theirs;
  const bool is_exchange = own.words.kind == OperationKind::all_to_all;
  auto expected = own.words;
  if (is_exchange) expected.elements = own.counts[static_cast<std::size_t>(peer)];
  if (theirs.words == expected && (is_exchange || theirs.counts == own.counts)) return;
  if (auto sentence = find_among_all(own))
    found_ = *sentence + "; all members must post the same operations in the same order";
}

/// Compares those that have said something about this operation.
std::optional<std::string> Agreement::find_among_all(const Said& own) const {
  std::vector<Signature> signatures;
  std::vector<core::Rank> ranks;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Said& said = i == self_ ? own : heard_[i];
    if (said.slot != own.slot) continue;
    signatures.push_back(signature_of(said));
    ranks.push_back(members_[i]);
  }
  if (auto sentence = find_disagreement(signatures, ranks)) return sentence;
  if (own.words.kind != OperationKind::all_to_all) return std::nullopt;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Said& said = heard_[i];
    if (i == self_ || said.slot != own.slot || said.words.elements == own.counts[i]) continue;
    return uneven_exchange({members_[i], i, said.words.elements}, {members_[self_], self_, own.counts[i]});
  }
  return std::nullopt;
}

std::optional<std::string> Agreement::find_in_message(int peer, const Said& theirs, const Said& own) const {
  auto sentence = find_disagreement(signature_of(theirs), members_[static_cast<std::size_t>(peer)],
                                    signature_of(own), members_[self_]);
  if (sentence) *sentence += "; both sides of a message must agree";
  return sentence;
}

/// Its counts are those of `said`. Those of an exchange stay unknown.
Signature Agreement::signature_of(const Said& said) const {
  Signature signature{.kind = said.words.kind,
                      .dtype = said.words.dtype,
                      .reduce = said.words.reduce,
                      .peer = said.words.peer};
  if (said.words.kind == OperationKind::all_to_all) return signature;
  if (!has_parts(said.words.kind)) {
    signature.elements = said.words.elements;
    return signature;
  }
  const auto counts = said.words.has_counts ? PartCountsView(said.counts)
                                            : PartCountsView::even(said.words.elements, members_.size());
  (said.words.kind == OperationKind::all_gather ? signature.input_counts : signature.output_counts) = counts;
  return signature;
}

}  // namespace troupe::gpu
