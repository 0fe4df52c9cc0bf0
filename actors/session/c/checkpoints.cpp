#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "actors/session/c/calls.hpp"
#include "actors/world/storage/posix.hpp"
#include "core/errors.hpp"
#include "core/values/value_text.hpp"

using troupe::actors::SaveResult;
using troupe::actors::c::copy_text;
using troupe::actors::c::missing;
using troupe::actors::c::with;
using troupe::core::Errc;
using troupe::core::fail;
using troupe::core::Result;
using troupe::core::Strictness;

namespace {

/// What a save keeps for the trainer.
Result<troupe::core::Value> common_of(const char* text) {
  if (text == nullptr) return troupe::core::Value();
  auto parsed = troupe::core::parse_value(text);
  if (!parsed) return fail(Errc::invalid_argument, "common: {}", parsed.error().message);
  return *std::move(parsed);
}

/// Modes that return keys are not for C, which has no place for them.
Result<Strictness> strictness_of(const char* name) {
  const auto strictness = TRY(troupe::core::strictness_from_name(name));
  if (strictness != Strictness::return_unexpected && strictness != Strictness::return_all) return strictness;
  return fail(Errc::invalid_argument,
              "{} returns keys, which C cannot receive; use log_unexpected or log_all", name);
}

/// Gives the first of what is waiting, if anything is.
Result<void> take(std::deque<SaveResult>& waiting, std::vector<SaveResult> over, std::int32_t* found,
                  troupe_save_result* result) {
  std::move(over.begin(), over.end(), std::back_inserter(waiting));
  if (found == nullptr) return missing("found");
  *found = waiting.empty() ? 0 : 1;
  if (*found == 0) return {};
  const auto save = std::move(waiting.front());
  waiting.pop_front();
  if (result == nullptr) return {};
  result->sequence = save.sequence;
  result->step = save.step.value;
  result->bytes = save.bytes;
  result->committed = save.committed ? 1 : 0;
  copy_text(result->name, save.name);
  copy_text(result->message, save.committed ? save.warning : save.committed.error().message);
  return {};
}

}  // namespace

troupe_status troupe_save(troupe_session* session, const char* common, uint64_t* sequence,
                          troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    const std::uint64_t begun = TRY(s.save(TRY(common_of(common))));
    if (sequence != nullptr) *sequence = begun;
    return {};
  });
}

troupe_status troupe_save_local(troupe_session* session, const char* common, uint64_t* sequence,
                                troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    const std::uint64_t begun = TRY(s.save_local(TRY(common_of(common))));
    if (sequence != nullptr) *sequence = begun;
    return {};
  });
}

troupe_status troupe_take_save(troupe_session* session, int32_t* found, troupe_save_result* result,
                               troupe_error* error) {
  return with(session, error, [&](auto& s) { return take(session->saves, s.take_saves(), found, result); });
}

troupe_status troupe_take_local_save(troupe_session* session, int32_t* found, troupe_save_result* result,
                                     troupe_error* error) {
  return with(session, error,
              [&](auto& s) { return take(session->local_saves, s.take_local_saves(), found, result); });
}

troupe_status troupe_wait_saves(troupe_session* session, troupe_error* error) {
  return with(session, error, [](auto& s) { return s.wait_saves(); });
}

troupe_status troupe_wait_local_saves(troupe_session* session, troupe_error* error) {
  return with(session, error, [](auto& s) { return s.wait_local_saves(); });
}

troupe_status troupe_recover(troupe_session* session, troupe_restored* restored, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    const auto found = TRY(s.recover());
    if (restored == nullptr) return {};
    *restored = {};
    restored->found = found ? 1 : 0;
    restored->step = s.next_step().value;
    copy_text(restored->name, found ? found->name : std::string());
    return {};
  });
}

troupe_status troupe_restore(troupe_session* session, const char* name, troupe_restored* restored,
                             troupe_error* error) {
  troupe_restore_options options{};
  options.name = name;
  return troupe_restore_with(session, &options, restored, error);
}

troupe_status troupe_restore_with(troupe_session* session, const troupe_restore_options* options,
                                  troupe_restored* restored, troupe_error* error) {
  return with(session, error, [&](auto& s) -> Result<void> {
    troupe::actors::RestoreOptions wanted;
    std::unique_ptr<troupe::actors::PosixStorage> storage;
    if (options != nullptr) {
      if (options->directory != nullptr) {
        storage = TRY(troupe::actors::PosixStorage::open(options->directory));
        wanted.from = storage.get();
      }
      if (options->name != nullptr) wanted.name = options->name;
      wanted.optimizer = options->weights_only == 0;
      if (options->strictness != nullptr) wanted.strictness = TRY(strictness_of(options->strictness));
    }
    const auto found = TRY(s.restore(wanted));
    session->restored_common = found ? TRY(troupe::core::value_text(found->common)) : std::string();
    if (restored == nullptr) return {};
    restored->found = found ? 1 : 0;
    restored->is_local = found && found->is_local ? 1 : 0;
    restored->step = s.next_step().value;
    copy_text(restored->name, found ? found->name : std::string());
    std::string passed_over;
    if (found) {
      for (const auto& why : found->passed_over) passed_over += why + '\n';
    }
    copy_text(restored->passed_over, passed_over);
    return {};
  });
}

size_t troupe_restored_common(const troupe_session* session, char* text, size_t capacity) {
  const std::string_view common = session == nullptr ? std::string_view() : session->restored_common;
  if (text != nullptr && capacity > 0) {
    const std::size_t count = std::min(common.size(), capacity - 1);
    std::memcpy(text, common.data(), count);
    text[count] = '\0';
  }
  return common.size() + 1;
}
