#pragma once

// Included before all else where ThreadSanitizer is to understand a std::timed_mutex: GCC 12's sees
// pthread_mutex_timedlock, but not pthread_mutex_clocklock, and takes every unlock for one of a free mutex.
#include <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK
