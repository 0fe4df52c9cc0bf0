#include "actors/session/rendezvous.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/errors.hpp"
#include "core/number.hpp"

namespace troupe::actors {

using core::Errc;

namespace {

/// The time that the Coordinator has to take one part. A lost connection ends the wait earlier.
constexpr std::chrono::seconds kPartDeadline{60};
/// The character between the number of further parts and the first one.
constexpr char kEndOfNumber = ':';

std::string key_of_part(const std::string& key, std::size_t part) {
  return fmt::format("{} part {}", key, part);
}

}  // namespace

core::Result<void> ControlRendezvous::set(const std::string& key, const std::string& value) {
  if (value.size() > kMaxValueBytes) {
    return core::fail(Errc::invalid_argument,
                      "expected at most {} bytes for '{}' in the job's store, found {}; register fewer "
                      "parameters and tensors, or give them shorter names",
                      kMaxValueBytes, key, value.size());
  }
  const auto further = value.empty() ? 0 : (value.size() - 1) / kPartBytes;
  const auto marker = key + " parts";
  if (further > 0) post(messages::StoreSet{marker, {}});
  for (std::size_t part = 1; part <= further; ++part) {
    post(messages::StoreSet{key_of_part(key, part), value.substr(part * kPartBytes, kPartBytes)});
    // Messages arrive in order, so the part is there when this is answered; the transport queues only so
    // much.
    TRY(fetch(marker, kPartDeadline));
  }
  // Comes last: whoever finds it finds all of them.
  post(messages::StoreSet{key, fmt::format("{}{}", further, kEndOfNumber) + value.substr(0, kPartBytes)});
  return {};
}

core::Result<std::string> ControlRendezvous::get(const std::string& key, std::chrono::nanoseconds deadline) {
  auto value = TRY(fetch(key, deadline));
  const auto end = std::min(value.find(kEndOfNumber), value.size());
  const auto further = core::parse_number<std::size_t>(std::string_view(value).substr(0, end),
                                                       {0, kMaxValueBytes / kPartBytes});
  if (!further || end == value.size()) {
    return core::fail(Errc::corrupt,
                      "expected a number of parts before '{}' in the job's store, found {}; start all ranks "
                      "with the same build",
                      key, core::quoted_excerpt(value));
  }
  value.erase(0, end + 1);
  for (std::size_t part = 1; part <= *further; ++part) value += TRY(fetch(key_of_part(key, part), deadline));
  return value;
}

void ControlRendezvous::post(messages::Message message) {
  world_.post({{world_.rank(), messages::Role::trainer, 0},
               {core::Rank{0}, messages::Role::coordinator, 0},
               world_.epoch(),
               std::move(message)});
}

/// What one message has brought to the store.
core::Result<std::string> ControlRendezvous::fetch(const std::string& key,
                                                   std::chrono::nanoseconds deadline) {
  const auto request = next_request_++;
  post(messages::StoreGet{request, key});
  return inbox_.wait_store_value(request, deadline);
}

}  // namespace troupe::actors
