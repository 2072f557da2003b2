plugins {
    id("com.android.application")
    id("org.jetbrains.kotlin.android")
}

android {
    namespace = "edgedecode.app" // the package of the code; the app's own name is applicationId
    compileSdk = 36
    ndkVersion = "28.2.13676358"

    defaultConfig {
        applicationId = "@APP_ID@"
        minSdk = @MIN_SDK@
        targetSdk = 36
        versionCode = 1
        versionName = "1.0"
        ndk { abiFilters += listOf(@ABIS@) }
        externalNativeBuild {
            cmake {
                targets += "edgedecode"
                // the library needs no C++ library beside it
                arguments += listOf("-DANDROID_STL=c++_static", "-DEDGEDECODE_VERSION=@VERSION@")
            }
        }
    }

    // libedgedecode.so, compiled here from its sources; ONNX Runtime's library comes with its package.
    externalNativeBuild { cmake { path = file("src/main/cpp/native/CMakeLists.txt") } }

    // Files that are compressed inside an APK cannot be mapped, and weights do not get smaller anyway.
    androidResources { noCompress += listOf("onnx", "data", "bin", "gguf") }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }

    assetPacks += listOf(":models")
}

kotlin { compilerOptions { jvmTarget = org.jetbrains.kotlin.gradle.dsl.JvmTarget.JVM_17 } }

dependencies {
@RUNTIME@
}
