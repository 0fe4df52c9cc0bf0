#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "actors/world/environment.hpp"
#include "actors/world/transport/authentication.hpp"
#include "core/result.hpp"

namespace troupe::apps {

/// Where the launchers of a job find the secret by which they know each other.
struct SecretSource {
  std::string token_file;     ///< --token-file; empty: not given
  bool is_loopback = true;    ///< all launchers are on one host, and meet at the loopback interface
  int port = 0;               ///< at which they meet
  bool makes_missing = true;  ///< the launcher of node 0
};

/// --token-file, TROUPE_JOB_TOKEN, or for several hosts ~/.troupe/token, which the launcher of node 0 makes
/// if there is none. On one host a file in /dev/shm that the launcher of node 0 makes for the job. A file
/// must be this user's, and nobody else may read it. Nothing yet if others are to make the file.
/// Errc::invalid_argument or Errc::io says what to do.
core::Result<std::optional<actors::JobToken>> find_secret(const SecretSource& source,
                                                          const actors::Variables& variables);

/// What find_secret() looks for, for people.
std::string name_of_secret(const SecretSource& source, const actors::Variables& variables);

/// The secret of one host, at node 0: of this launcher, in /dev/shm, where other launchers of the same user
/// find it by the port. The file is the caller's to remove; those of launchers before it at this port are
/// removed.
core::Result<void> publish_secret(const actors::JobToken& secret, const std::string& launcher, int port);
/// Where publish_secret() puts it.
std::filesystem::path published_secret(const std::string& launcher, int port);

/// What the ranks of this job prove to each other. Follows from the launchers' secret, so that it need not
/// travel.
actors::JobToken token_of_job(const actors::JobToken& secret, const std::string& job);

}  // namespace troupe::apps
