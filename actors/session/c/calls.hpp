#pragma once

// What the functions of troupe.h have in common.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "actors/session/c/troupe.h"
#include "actors/session/session.hpp"
#include "actors/session/trainer_group.hpp"
#include "actors/shell/process_world.hpp"
#include "core/dtype.hpp"
#include "core/errors.hpp"
#include "core/result.hpp"

/// What troupe_group stands for. The session outlives it.
struct troupe_group {
  troupe_session* session = nullptr;
  troupe::actors::TrainerGroup* group = nullptr;
};

/// What troupe_experts stands for. The session outlives it.
struct troupe_experts {
  /// What a routing that C sees is of.
  struct Routing {
    troupe::actors::ExpertRouting routing;
    std::vector<troupe_rows> products;
    troupe_routing view{};
  };

  troupe_session* session = nullptr;
  troupe::actors::ExpertLayer* layer = nullptr;
  std::vector<std::unique_ptr<Routing>> routings;  ///< that are not freed
};

/// What troupe_session stands for. The world outlives the session.
struct troupe_session {
  std::unique_ptr<troupe::actors::ProcessWorld> world;
  std::unique_ptr<troupe::actors::Session> session;
  std::deque<troupe::actors::SaveResult> saves;        ///< taken of the session, not yet of the caller
  std::deque<troupe::actors::SaveResult> local_saves;  ///< as above
  std::string restored_common;
  std::map<std::string, troupe_group, std::less<>> groups;  ///< that the caller asked for
  std::map<std::uint32_t, troupe_experts> experts;          ///< as above, by layer
  bool is_left = false;
};

namespace troupe::actors::c {

template <std::size_t capacity>
void copy_text(char (&to)[capacity], std::string_view text) {
  const std::size_t count = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), count);
  to[count] = '\0';
}

inline troupe_status told(const core::Error& why, troupe_error* error) {
  const auto status = static_cast<troupe_status>(static_cast<int>(why.code) + 1);
  if (error != nullptr) {
    error->status = status;
    copy_text(error->message, why.message);
  }
  return status;
}

/// Runs `body`, which returns a Result<void>; nothing thrown leaves it.
template <class Body>
troupe_status call(troupe_error* error, const Body& body) {
  try {
    if (const core::Result<void> done = body(); !done) return told(done.error(), error);
    return TROUPE_OK;
  } catch (const std::bad_alloc&) {
    return told({core::Errc::out_of_memory, "this process has no memory left"}, error);
  } catch (const std::exception& thrown) {
    return told({core::Errc::internal, thrown.what()}, error);
  } catch (...) {
    return told({core::Errc::internal, "a callback threw something that is not a std::exception"}, error);
  }
}

/// Like call(), with the session; NULL is an error.
template <class Body>
troupe_status with(troupe_session* session, troupe_error* error, const Body& body) {
  if (session == nullptr) {
    return told({core::Errc::invalid_argument, "the session is NULL; troupe_session_join() makes one"},
                error);
  }
  return call(error, [&] { return body(*session->session); });
}

inline core::Result<void> missing(const char* name) {
  return core::fail(core::Errc::invalid_argument, "{} is NULL", name);
}

/// Any dtype of the header.
inline core::Result<core::DType> dtype_of(troupe_dtype dtype) {
  switch (dtype) {
    case TROUPE_F32:
      return core::DType::f32;
    case TROUPE_F16:
      return core::DType::f16;
    case TROUPE_BF16:
      return core::DType::bf16;
    case TROUPE_F64:
      return core::DType::f64;
    case TROUPE_I64:
      return core::DType::i64;
    case TROUPE_I32:
      return core::DType::i32;
    case TROUPE_U8:
      return core::DType::u8;
    case TROUPE_I16:
      return core::DType::i16;
    case TROUPE_I8:
      return core::DType::i8;
    case TROUPE_U64:
      return core::DType::u64;
    case TROUPE_U32:
      return core::DType::u32;
    case TROUPE_U16:
      return core::DType::u16;
    case TROUPE_BOOL:
      return core::DType::boolean;
    case TROUPE_DTYPE_LAST:
      break;
  }
  return core::fail(core::Errc::invalid_argument,
                    "{} is not a dtype; use TROUPE_F32 or another of troupe_dtype, up to TROUPE_BOOL ({})",
                    static_cast<int>(dtype), static_cast<int>(TROUPE_BOOL));
}

inline core::Result<core::Pass> pass_of(troupe_pass pass) {
  switch (pass) {
    case TROUPE_FORWARD:
      return core::Pass::forward;
    case TROUPE_BACKWARD:
      return core::Pass::backward;
    case TROUPE_WEIGHTS:
      return core::Pass::weights;
    case TROUPE_PASS_LAST:
      break;
  }
  return core::fail(core::Errc::invalid_argument,
                    "{} is not a pass; use TROUPE_FORWARD, TROUPE_BACKWARD or TROUPE_WEIGHTS",
                    static_cast<int>(pass));
}

}  // namespace troupe::actors::c
