/// Selects how much of Tidepool a source file compiles.
///
/// | macro | what the file compiles |
/// | --- | --- |
/// | none | all that it uses (header-only; the default) |
/// | `TIDEPOOL_COMPILED` | declarations; one file of the program includes `tidepool/src.hpp`, or
/// the program links the CMake target `tidepool::compiled` |
///
/// Files of both kinds may be linked together. A file of the second kind alone does not link.
#pragma once

#if defined(TIDEPOOL_COMPILED) && !defined(TIDEPOOL_SOURCE)
#define TIDEPOOL_DEFINITIONS 0
#else
/// 1 where this file compiles definitions, 0 where it compiles declarations alone.
#define TIDEPOOL_DEFINITIONS 1
#endif

// `TIDEPOOL_DETAIL_EVERYWHERE` stands before a function that kernels call, too.
#if defined(__CUDACC__)
#define TIDEPOOL_DETAIL_EVERYWHERE __host__ __device__
#else
#define TIDEPOOL_DETAIL_EVERYWHERE
#endif

// `TIDEPOOL_INLINE` stands before a function that is no template.
#if defined(TIDEPOOL_COMPILED)
#define TIDEPOOL_INLINE
#else
/// `inline` where definitions are compiled in every file, else nothing.
#define TIDEPOOL_INLINE inline
#endif
