plugins {
    id("com.android.application") version "8.13.0" apply false
    id("com.android.ai-pack") version "8.13.0" apply false
    id("org.jetbrains.kotlin.android") version "2.2.20" apply false
}

// Puts the bundle around this project into the AI pack: `gradle copyBundle`, before the app is built for Play.
tasks.register<Sync>("copyBundle") {
    from("..") {
        include("native/**")
    }
    into("models/src/main/assets/bundle")
}
