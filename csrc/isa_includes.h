// Headers that must come before the instruction set is chosen: their inline functions are shared by
// the whole library and may use nothing that an older processor lacks.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "isa.h"
#include "parallel.h"
#include "plan.h"
