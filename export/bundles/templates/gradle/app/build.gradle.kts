plugins {
    id("com.android.application")
    id("org.jetbrains.kotlin.android")
}

android {
    namespace = "edgedecode.app" // the package of the code; the app's own name is applicationId
    compileSdk = 36

    defaultConfig {
        applicationId = "@APP_ID@"
        minSdk = @MIN_SDK@
        targetSdk = 36
        versionCode = 1
        versionName = "1.0"
        ndk { abiFilters += "arm64-v8a" }
    }

    // Files that are compressed inside an APK cannot be mapped, and weights do not get smaller anyway.
    androidResources { noCompress += listOf("onnx", "data", "bin", "gguf") }

    packaging {
        jniLibs.useLegacyPackaging = true // Qualcomm's NPU driver opens its part as a file in nativeLibraryDir
        resources.excludes += "native/lib/**" // DJL's libraries for desktops
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }

    // DecodeTest replays the bundle's selftest/rounds.json.
    sourceSets["test"].resources.srcDir("../../selftest")

    assetPacks += listOf(":models")
}

kotlin { compilerOptions { jvmTarget = org.jetbrains.kotlin.gradle.dsl.JvmTarget.JVM_17 } }

dependencies {
@RUNTIME@
    testImplementation("junit:junit:4.13.2")
}
