// Asks the runtime which actors' library it stands on.
#include <cstdio>
#include <troupe/caf_version.hpp>

int main() {
  const std::string version = troupe::actors::caf_version();
  std::puts(version.c_str());
  return version.find('.') == std::string::npos ? 1 : 0;
}
