#pragma once

#include <caf/config.hpp>

// The release of CAF: 1706 for 0.17.6 and 10100 for 1.1.0. Releases from 1.0 on define the parts; CAF_VERSION
// alone is not enough, because that of 1.1.0 is 0100, which is octal for 64.
#ifdef CAF_VERSION_MAJOR
#define TROUPE_CAF_VERSION (CAF_VERSION_MAJOR * 10000 + CAF_VERSION_MINOR * 100 + CAF_VERSION_PATCH)
#else
#define TROUPE_CAF_VERSION CAF_VERSION
#endif
